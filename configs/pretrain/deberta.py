"""Pretrains DeBERTa-v3 (He et al. 2023): a discriminator detects replaced tokens.

    bert-jax pretrain deberta --run runs/deberta \\
        --arg size=xsmall corpus=data/train heldout=data/heldout

The hyperparameters are as in the original code (`experiments/language_model/rtd.sh` and
`rtd_*.json`), which has none for the learning rate of `small`; it gets those of `base`. What
differs from ELECTRA's recipe:

- both networks are DeBERTa encoders of the same width, and the generator has half of the layers;
- gradient-disentangled embedding sharing: the discriminator's word embeddings are those of the
  generator, which its own loss does not train, plus a difference;
- all selected tokens become [MASK]; the discriminator's loss has the weight 10.

What differs from the original code: the generator predicts from its last layer, without the
enhanced mask decoder, and one step updates both networks (reasons:
bert_jax/objectives/replaced_tokens.py).

`bert-jax finetune` and `bert-jax export` use the discriminator; `export --generator` writes the
generator, which fills masks.
"""

import dataclasses

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
from bert_jax.models.deberta_v2.config import DebertaV2Config, DebertaV3Size
from bert_jax.models.layers.config import ComputeConfig

# Peak learning rate and batch size.
_SETTINGS: dict[DebertaV3Size, tuple[float, int]] = {
    "xsmall": (3e-4, 64),
    "small": (1e-4, 256),
    "base": (1e-4, 256),
    "large": (1e-4, 256),
}


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: DebertaV3Size = "base",
    steps: int = 1_000_000,
    batch_size: int | None = None,
    seq_length: int = 512,
    gradient_accumulation_steps: int = 1,
    learning_rate: float | None = None,
    warmup_steps: int = 10_000,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the run of the original code on a corpus that `bert-jax prepare` has written.

    `batch_size` and `learning_rate` are by default those of the size. `tpu` communicates in the
    dtype of the computation.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    peak_learning_rate, published_batch_size = _SETTINGS[size]
    model = DebertaV2Config.from_size(size, vocab_size=tokenizer.vocab_size)
    masking = Masking(mask_replace_prob=1.0, random_replace_prob=0.0)
    evaluation = (
        HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100), masking=masking)
        if heldout
        else None
    )
    return Experiment(
        name=f"deberta-v3-{size}",
        seed=seed,
        objective=ReplacedTokens(
            model=model,
            generator=dataclasses.replace(model, num_hidden_layers=model.num_hidden_layers // 2),
            mask_token_id=tokenizer.mask_id,
            embedding_sharing="gradient_disentangled",
            rtd_weight=10.0,
            compute=ComputeConfig(dtype=dtype),
        ),
        data=PretrainingData(corpus=corpus, input_format=SingleSegment(), masking=masking),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size or published_batch_size,
                    max_predictions_per_seq=round(masking.mlm_probability * seq_length),
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
