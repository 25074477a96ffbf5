"""Pretrains RoBERTa (Liu et al. 2019, section 5, table 9): 500,000 updates of 8,192 sequences.

    bert-jax pretrain roberta --run runs/roberta \\
        --arg size=base corpus=data/train heldout=data/heldout

What differs from BERT's recipe:

- whole sentences across documents fill every sequence of 512 tokens (FULL-SENTENCES);
- no next-sentence prediction, and other masks in every epoch;
- Adam with b2 = 0.98, and no gradient clipping.

What differs from fairseq: <s> and </s> are never predicted (`data/pretraining/masking.py`).

fairseq's public recipe is shorter: `steps=125000 batch_size=2048 learning_rate=5e-4
warmup_steps=10000`. If a batch does not fit into memory, add `gradient_accumulation_steps=N`. The
corpus needs a tokenizer with RoBERTa's special tokens, for example from
`bert-jax tokenizer train --kind bpe`.
"""

from typing import Literal

from bert_jax.config.data import FullSentences, PretrainingData
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
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.roberta.config import RobertaConfig

# Peak learning rate, and warmup steps as a fraction of all steps (table 9).
_SCHEDULES = {"base": (6e-4, 0.048), "large": (4e-4, 0.06)}


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: Literal["base", "large"] = "base",
    steps: int = 500_000,
    batch_size: int = 8192,
    seq_length: int = 512,
    gradient_accumulation_steps: int = 1,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the paper's run on a corpus that `bert-jax prepare` has written.

    `learning_rate` and `warmup_steps` are by default the paper's for the size. `tpu` computes
    attention in one kernel and communicates in the dtype of the computation.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    peak_learning_rate, warmup_fraction = _SCHEDULES[size]
    evaluation = HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
    return Experiment(
        name=f"roberta-{size}",
        seed=seed,
        objective=Pretraining(
            model=RobertaConfig.from_size(size, vocab_size=tokenizer.vocab_size),
            mask_token_id=tokenizer.mask_id,
            nsp_weight=0.0,
            compute=ComputeConfig(dtype=dtype, attention="pallas" if tpu else "xla"),
        ),
        data=PretrainingData(corpus=corpus, input_format=FullSentences()),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size,
                    # 15 % of the sequence: special tokens are not predicted.
                    max_predictions_per_seq=round(0.15 * seq_length),
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=AdamW(b2=0.98),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate or peak_learning_rate,
                warmup_steps=(
                    round(warmup_fraction * steps) if warmup_steps is None else warmup_steps
                ),
            ),
            max_grad_norm=None,
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )
