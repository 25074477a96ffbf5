"""BERT pretraining with large batches and LAMB (You et al. 2020), for slices of many chips.

    bert-jax pretrain configs/pretrain/bert_large_batch.py --run runs/large_batch \\
        --with size=base batch_size=4096 prepared=data/train heldout=data/heldout

As many sequences as in BERT's own recipe (256,000,000), in fewer and larger updates: a batch of 256
leaves 16 chips waiting for each other's gradients.
"""

import math

from bert_jax.data.config import LoaderConfig
from bert_jax.data.prepared import corpus_vocabulary
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.models.config import Compute, FusedAttention, PlainAttention, Size, bert
from bert_jax.parallel.config import Preset, mesh
from bert_jax.programs.config import Pretraining
from bert_jax.train.config import Checkpoints, Evaluation, Lamb, Phase, Train, WarmupLinear

# You et al. 2020, "untuned LAMB": at 32,768 rows a peak of 5e-3 after a fifth of the updates. With
# fewer rows the peak falls with their square root, and the share of warm-up in proportion.
_ROWS, _PEAK, _WARMUP = 32_768, 5e-3, 0.2


def get_config(
    *,
    prepared: str,
    heldout: str | None = None,
    size: Size = "base",
    sequences: int = 256_000_000,
    batch_size: int = 4096,
    accumulate: int = 4,
    accumulate_long: int = 16,
    bfloat16: bool = True,
    tpu: bool = False,
    layout: Preset = "dp",
    seed: int = 0,
) -> Experiment:
    """90 % of the updates at length 128, the rest at 512, each in so many microbatches.

    `tpu` computes attention in one kernel and lets chips exchange what they compute in.
    """
    if not 256 <= batch_size <= _ROWS:
        raise ConfigError(f"--with batch_size={batch_size}: the rule covers 256 to {_ROWS} rows")
    dtype = "bfloat16" if bfloat16 else "float32"
    attention = FusedAttention() if tpu else PlainAttention()
    steps = max(10, sequences // batch_size)
    short = round(0.9 * steps)
    share = batch_size / _ROWS
    vocabulary = corpus_vocabulary(prepared)
    evaluation = Evaluation(prepared=heldout, every=max(1, steps // 100)) if heldout else None
    return Experiment(
        name=f"bert-{size}-{batch_size}",
        seed=seed,
        program=Pretraining(
            model=bert(size, vocab_size=vocabulary.size),
            mask_token_id=vocabulary.mask_id,
            compute=Compute(dtype=dtype, attention=attention),
        ),
        data=LoaderConfig(prepared=prepared),
        train=Train(
            phases=(
                Phase(
                    steps=short,
                    length=128,
                    batch_size=batch_size,
                    max_predictions=20,
                    accumulate=accumulate,
                ),
                Phase(
                    steps=steps - short,
                    length=512,
                    batch_size=batch_size,
                    max_predictions=77,
                    accumulate=accumulate_long,
                ),
            ),
            optimizer=Lamb(),
            schedule=WarmupLinear(
                peak=_PEAK * math.sqrt(share), warmup_steps=max(1, round(_WARMUP * share * steps))
            ),
            checkpoints=Checkpoints(every=max(1, steps // 200)),
            evaluation=evaluation,
        ),
        mesh=mesh(layout, dtype if tpu else "float32"),
    )
