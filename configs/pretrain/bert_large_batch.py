"""Pretrains BERT with large batches and LAMB (You et al. 2020), for slices of many chips.

    bert-jax pretrain bert_large_batch --run runs/large_batch \\
        --arg size=base batch_size=4096 corpus=data/train heldout=data/heldout

It trains on as many sequences as BERT's own recipe (256,000,000), in fewer and larger steps: with a
batch of 256, 16 chips spend much of the time communicating gradients.
"""

import math

from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    CheckpointConfig,
    HeldOutEval,
    Lamb,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig, BertSize
from bert_jax.models.layers.config import ComputeConfig

# You et al. 2020, "untuned LAMB": batch size 32,768 with a peak learning rate of 5e-3 after 20 % of
# the steps. The peak scales with the square root of the batch size, the warmup fraction linearly.
_REFERENCE_BATCH_SIZE, _REFERENCE_LEARNING_RATE, _REFERENCE_WARMUP_FRACTION = 32_768, 5e-3, 0.2


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: BertSize = "base",
    sequences: int = 256_000_000,
    batch_size: int = 4096,
    gradient_accumulation_steps: int = 4,
    gradient_accumulation_steps_long: int = 16,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns a config with 90 % of the steps at length 128 and the rest at length 512.

    `tpu` computes attention in a fused kernel and communicates in the compute dtype.

    Args:
      sequences: the sequences of all updates together.
      gradient_accumulation_steps: the microbatches of an update at length 128.
      gradient_accumulation_steps_long: the microbatches of an update at length 512.
    """
    if not 256 <= batch_size <= _REFERENCE_BATCH_SIZE:
        raise ConfigError(
            f"--arg batch_size={batch_size}: expected 256 to "
            f"{_REFERENCE_BATCH_SIZE}, the range of the learning rate rule"
        )
    dtype = "bfloat16" if bfloat16 else "float32"
    attention = "pallas" if tpu else "xla"
    steps = max(10, sequences // batch_size)
    short_steps = round(0.9 * steps)
    batch_fraction = batch_size / _REFERENCE_BATCH_SIZE
    tokenizer = corpus_tokenizer(corpus)
    evaluation = HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
    return Experiment(
        name=f"bert-{size}-{batch_size}",
        seed=seed,
        objective=Pretraining(
            model=BertConfig.from_size(size, vocab_size=tokenizer.vocab_size),
            mask_token_id=tokenizer.mask_id,
            compute=ComputeConfig(dtype=dtype, attention=attention),
        ),
        data=PretrainingData(corpus=corpus),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=short_steps,
                    seq_length=128,
                    batch_size=batch_size,
                    max_predictions_per_seq=20,
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
                Phase(
                    steps=steps - short_steps,
                    seq_length=512,
                    batch_size=batch_size,
                    max_predictions_per_seq=77,
                    gradient_accumulation_steps=gradient_accumulation_steps_long,
                ),
            ),
            optimizer=Lamb(),
            schedule=WarmupLinear(
                peak_learning_rate=_REFERENCE_LEARNING_RATE * math.sqrt(batch_fraction),
                warmup_steps=max(1, round(_REFERENCE_WARMUP_FRACTION * batch_fraction * steps)),
            ),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 200)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )
