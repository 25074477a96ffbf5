"""Pretrains ELECTRA (Clark et al. 2020): a generator replaces tokens, a discriminator detects them.

    bert-jax pretrain electra --run runs/electra \\
        --arg size=small corpus=data/train heldout=data/heldout

The hyperparameters are those of table 6 of the paper; the generator's size is that of the released
models. What differs from BERT's recipe:

- the loss of the discriminator is over all tokens, with 50 times the weight of the masked-LM loss
  of the generator; both networks share their embeddings;
- 85 % of the selected tokens become [MASK], 15 % remain, none becomes a random token;
- no next-sentence prediction: a sequence is one segment of a document.

What differs from the original code: it selects positions with replacement, and makes sequences of
two segments of one document with token types 0 and 1 (reasons:
bert_jax/objectives/replaced_tokens.py).

`bert-jax finetune` and `bert-jax export` use the discriminator; `export --generator` writes the
generator, which fills masks.
"""

from typing import Literal

from bert_jax.config.data import Masking, PretrainingData, SingleSegment
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import ReplacedTokens
from bert_jax.config.train import (
    AdamW,
    CheckpointConfig,
    HeldOutEval,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.models.electra.config import GENERATOR_FRACTIONS, ElectraConfig, generator_config
from bert_jax.models.layers.config import ComputeConfig

# Peak learning rate, batch size, updates, sequence length and fraction of selected tokens.
_SETTINGS = {
    "small": (5e-4, 128, 1_000_000, 128, 0.15),
    "base": (2e-4, 256, 766_000, 512, 0.15),
    "large": (2e-4, 2048, 400_000, 512, 0.25),
}


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: Literal["small", "base", "large"] = "small",
    generator_fraction: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    seq_length: int | None = None,
    gradient_accumulation_steps: int = 1,
    learning_rate: float | None = None,
    warmup_steps: int = 10_000,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the paper's run on a corpus that `bert-jax prepare` has written.

    Values without a default are by default the published ones of the size. `tpu` computes attention
    in one kernel and communicates in the dtype of the computation.

    Args:
      generator_fraction: the width of the generator's layers as a fraction of the discriminator's.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    peak_learning_rate, batch, updates, length, mlm_probability = _SETTINGS[size]
    steps, length = steps or updates, seq_length or length
    model = ElectraConfig.from_size(size, vocab_size=tokenizer.vocab_size)
    fraction = GENERATOR_FRACTIONS[size] if generator_fraction is None else generator_fraction
    masking = Masking(
        mlm_probability=mlm_probability, mask_replace_prob=0.85, random_replace_prob=0.0
    )
    evaluation = (
        HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100), masking=masking)
        if heldout
        else None
    )
    return Experiment(
        name=f"electra-{size}",
        seed=seed,
        objective=ReplacedTokens(
            model=model,
            generator=generator_config(model, fraction),
            mask_token_id=tokenizer.mask_id,
            compute=ComputeConfig(dtype=dtype, attention="pallas" if tpu else "xla"),
        ),
        data=PretrainingData(corpus=corpus, input_format=SingleSegment(), masking=masking),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=length,
                    batch_size=batch_size or batch,
                    # As in the original code: rounding up needs one more than the average.
                    max_predictions_per_seq=int((mlm_probability + 0.005) * length),
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=AdamW(bias_correction=False),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate or peak_learning_rate,
                warmup_steps=min(warmup_steps, steps),
            ),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )
