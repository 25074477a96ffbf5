"""Pretrains BERT as in Devlin et al. 2019, appendix A.2: 1,000,000 steps of 256 sequences.

    bert-jax pretrain bert --run runs/base \\
        --arg size=base corpus=data/train heldout=data/heldout

90 % of the steps use sequences of 128 tokens, the last 10 % sequences of 512.
"""

from bert_jax.config.data import PretrainingData
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
from bert_jax.models.bert.config import BertConfig, BertSize
from bert_jax.models.layers.config import ComputeConfig


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: BertSize = "base",
    steps: int = 1_000_000,
    batch_size: int = 256,
    learning_rate: float = 1e-4,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the config of the paper's run on a corpus written by `bert-jax prepare`.

    `tpu` computes attention in a fused kernel and communicates in the compute dtype.
    """
    dtype = "bfloat16" if bfloat16 else "float32"
    attention = "pallas" if tpu else "xla"
    tokenizer = corpus_tokenizer(corpus)
    short_steps = max(1, round(0.9 * steps))
    phases = [
        Phase(steps=short_steps, seq_length=128, batch_size=batch_size, max_predictions_per_seq=20)
    ]
    if steps > short_steps:
        phases.append(
            Phase(
                steps=steps - short_steps,
                seq_length=512,
                batch_size=batch_size,
                max_predictions_per_seq=77,
            )
        )
    evaluation = HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
    return Experiment(
        name=f"bert-{size}",
        seed=seed,
        objective=Pretraining(
            model=BertConfig.from_size(size, vocab_size=tokenizer.vocab_size),
            mask_token_id=tokenizer.mask_id,
            compute=ComputeConfig(dtype=dtype, attention=attention),
        ),
        data=PretrainingData(corpus=corpus),
        train=TrainConfig(
            phases=tuple(phases),
            optimizer=AdamW(),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate, warmup_steps=max(1, steps // 100)
            ),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )
