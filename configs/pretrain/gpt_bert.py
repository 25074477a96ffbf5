"""Pretrains on masked and causal sequences in one run (GPT-BERT, Charpentier and Samuel 2024).

    bert-jax pretrain gpt_bert --run runs/gpt-bert \\
        --arg size=ettin-17m corpus=data/train heldout=data/heldout

What differs from masked LM:

- a masked token is predicted at the position before it, as the next token;
- one sequence of sixteen has no masks: its tokens attend to those before them, and all of them are
  predicted. The loss is the mean of both kinds, weighted by their fractions of the batch;
- the fraction of masked tokens decreases from 30 to 15 %, here in a few phases, in the published
  runs in every update.

The network is ModernBERT's. That of the authors is LTG-BERT, which they train with LAMB; optimizer
and schedule are as in `configs/pretrain/masked_lm.py`, and the length and the size of the batch are
choices of this project.
"""

from bert_jax.config.data import FullSentences, Masking, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
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
from bert_jax.errors import check_range
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.modernbert.config import ModernBertConfig, ModernBertSize

_CAUSAL_FRACTION = 1 / 16
_FIRST_RATE, _LAST_RATE = 0.3, 0.15


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: ModernBertSize = "base",
    steps: int = 15_625,
    num_phases: int = 4,
    batch_size: int = 256,
    seq_length: int = 128,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 5e-4,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns a run on a corpus that `bert-jax prepare` has written.

    `warmup_steps` is by default 2 % of the steps. With one phase, 15 % of the tokens are masked.
    """
    check_range("num_phases", num_phases, at_least=1, at_most=steps)
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    phases = [
        Phase(
            steps=steps * (index + 1) // num_phases - steps * index // num_phases,
            seq_length=seq_length,
            batch_size=batch_size,
            max_predictions_per_seq=seq_length,
            gradient_accumulation_steps=gradient_accumulation_steps,
            mlm_probability=_LAST_RATE
            + (_FIRST_RATE - _LAST_RATE) * (num_phases - 1 - index) / max(num_phases - 1, 1),
        )
        for index in range(num_phases)
    ]
    return Experiment(
        name=f"gpt-bert-{size}",
        seed=seed,
        objective=Pretraining(
            model=ModernBertConfig.from_size(
                size,
                vocab_size=-(-tokenizer.vocab_size // 64) * 64,  # a multiple of 64 is faster
                max_position_embeddings=max(seq_length, 512),
            ),
            mask_token_id=tokenizer.mask_id,
            nsp_weight=0.0,
            masked_next_token=True,
            compute=ComputeConfig(dtype=dtype),
        ),
        data=PretrainingData(
            corpus=corpus,
            input_format=FullSentences(),
            masking=Masking(mlm_probability=_LAST_RATE),
            causal_fraction=_CAUSAL_FRACTION,
        ),
        train=TrainConfig(
            phases=tuple(phases),
            optimizer=AdamW(b2=0.98),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate,
                warmup_steps=round(0.02 * steps) if warmup_steps is None else warmup_steps,
            ),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=(
                HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
            ),
        ),
        mesh=make_mesh_config(parallelism, dtype),
    )
