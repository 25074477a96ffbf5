"""Pretrains ModernBERT (Warner et al. 2024): 1.7 trillion tokens in sequences of 1,024.

    bert-jax pretrain modernbert --run runs/modernbert \\
        --arg size=base corpus=data/train heldout=data/heldout

What differs from BERT's recipe:

- documents packed into full sequences, in which a token attends to its own document only;
- 30 % of the tokens are predicted, 15 % in the evaluation; no next-sentence prediction;
- StableAdamW without gradient clipping; the learning rate stays at its peak until the last steps,
  in which it decays by 1 - sqrt;
- dropout of 0.1 after attention, and none elsewhere.

`batch_size_warmup=true` begins with a sixth of the batch, which grows to the full size in equal
steps over the first 50 billion tokens, or that fraction of a shorter run; the authors go from 768
to 4,608 over as many tokens, in steps that the paper does not give. Without it, the batch has its
full size from the beginning. `steps` are updates of full batches, so a run with smaller ones has
more updates.

What differs from the published run: special tokens are never predicted. The authors
train on with sequences of 8,192 for 300 billion tokens, for which global layers get rotations with
the base 160,000 instead of 10,000, and decay the learning rate in the last 50 billion only:
`seq_length=8192 batch_size=576` and `--init-from RUN`. The corpus needs a tokenizer with [CLS]
and [SEP].

`masking_rates=mmbert` predicts fewer tokens late in the run, as mmBERT does (Marone et al. 2025):
30 % in the first 77 % of the updates, 15 % in the next 20 %, 5 % in the last 3 %, in which the
learning rate decays. mmBERT's second phase also has longer sequences, which are a run of their own
here.
"""

import dataclasses
from typing import Literal

from bert_jax.config.data import Masking, PackedSegments, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.phases import (
    updates_of_sequences,
    warm_up_batch_size,
    with_mmbert_masking_rates,
)
from bert_jax.config.train import (
    CheckpointConfig,
    HeldOutEval,
    Parallelism,
    Phase,
    StableAdamW,
    TrainConfig,
    WarmupStableDecay,
    make_mesh_config,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.modernbert.config import ModernBertConfig, ModernBertSize

_TOKENS, _WARMUP_TOKENS = 1.719e12, 3e9
_SMALL_BATCHES = 50e9 / _TOKENS  # the fraction of the tokens in batches below the full size
_SIZES_OF_BATCHES = 6  # in the growth of the batch, the full one included
_MASKING_RATE = 0.3
_DECAY_FRACTION = 0.03  # of all updates, as 50 billion tokens are of the published run

# Peak learning rate, and the weight decay for each update at the peak (both papers' configs).
_RATES: dict[ModernBertSize, tuple[float, float]] = {
    "base": (8e-4, 1e-5),
    "large": (5e-4, 1e-5),
    "ettin-17m": (3e-3, 3e-4),
    "ettin-32m": (3e-3, 3e-4),
    "ettin-68m": (3e-3, 3e-4),
    "ettin-150m": (8e-4, 1e-5),
    "ettin-400m": (5e-4, 1e-5),
    "ettin-1b": (5e-4, 1e-5),
}


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: ModernBertSize = "base",
    steps: int | None = None,
    batch_size: int = 4608,
    seq_length: int = 1024,
    gradient_accumulation_steps: int = 1,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    masking_rates: Literal["modernbert", "mmbert"] = "modernbert",
    batch_size_warmup: bool = False,
    seed: int = 0,
) -> Experiment:
    """Returns the published run on a corpus that `bert-jax prepare` has written.

    `masking_rates` are 30 % in the whole run, or 30, 15 and 5 % in three phases. `steps` and
    `warmup_steps` are by default those of 1,719 and 3 billion tokens. `tpu` computes global
    attention of short sequences in one kernel and communicates in the dtype of the computation.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    peak, decay_at_peak = _RATES[size]
    peak = learning_rate or peak
    tokens_per_step = batch_size * seq_length
    steps = round(_TOKENS / tokens_per_step) if steps is None else steps
    model = ModernBertConfig.from_size(
        size,
        vocab_size=-(-tokenizer.vocab_size // 64) * 64,  # a multiple of 64 is faster
        max_position_embeddings=max(seq_length, 512),
    )
    evaluation = HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
    phase = Phase(
        steps=steps,
        seq_length=seq_length,
        batch_size=batch_size,
        max_predictions_per_seq=round(_MASKING_RATE * seq_length),
        gradient_accumulation_steps=gradient_accumulation_steps,
    )
    phases = (phase,) if masking_rates == "modernbert" else with_mmbert_masking_rates(phase)
    if batch_size_warmup:
        phases = warm_up_batch_size(
            phases,
            first_batch_size=batch_size // _SIZES_OF_BATCHES,
            num_sequences=round(_SMALL_BATCHES * steps * batch_size),
        )
    if warmup_steps is None:
        warmup_sequences = min(round(_WARMUP_TOKENS / seq_length), steps * batch_size // 10)
        warmup_steps = updates_of_sequences(phases, warmup_sequences)
    return Experiment(
        name=f"modernbert-{size}",
        seed=seed,
        objective=Pretraining(
            model=dataclasses.replace(
                model,
                attention_output_dropout=0.1,
                local_rope_theta=10_000.0,
                global_rope_theta=10_000.0 if seq_length <= 1024 else 160_000.0,
            ),
            mask_token_id=tokenizer.mask_id,
            nsp_weight=0.0,
            compute=ComputeConfig(dtype=dtype, attention="pallas" if tpu else "xla"),
        ),
        data=PretrainingData(
            corpus=corpus,
            input_format=PackedSegments(),
            masking=Masking(mlm_probability=_MASKING_RATE),
        ),
        train=TrainConfig(
            phases=phases,
            # The authors subtract decay_at_peak * rate / peak times the parameter; here the factor
            # is weight_decay * rate.
            optimizer=StableAdamW(b2=0.98, weight_decay=decay_at_peak / peak),
            schedule=WarmupStableDecay(
                peak_learning_rate=peak,
                warmup_steps=warmup_steps,
                decay_steps=round(_DECAY_FRACTION * steps),
            ),
            max_grad_norm=None,
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )
