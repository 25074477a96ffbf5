"""BERT pretraining (Devlin et al. 2019, appendix A.2): 1,000,000 updates of 256 sequences.

    bert-jax pretrain configs/pretrain/bert.py --run runs/base \\
        --with size=base prepared=data/train heldout=data/heldout

90 % of the updates see sequences of 128 tokens, the last 10 % sequences of 512.
"""

from bert_jax.data.config import LoaderConfig
from bert_jax.data.prepared import corpus_vocabulary
from bert_jax.experiment import Experiment
from bert_jax.models.config import Compute, FusedAttention, PlainAttention, Size, bert
from bert_jax.parallel.config import Preset, mesh
from bert_jax.programs.config import Pretraining
from bert_jax.train.config import AdamW, Checkpoints, Evaluation, Phase, Train, WarmupLinear


def get_config(
    *,
    prepared: str,
    heldout: str | None = None,
    size: Size = "base",
    steps: int = 1_000_000,
    batch_size: int = 256,
    learning_rate: float = 1e-4,
    bfloat16: bool = True,
    tpu: bool = False,
    layout: Preset = "dp",
    seed: int = 0,
) -> Experiment:
    """The paper's run on a corpus prepared by `bert-jax prepare`; everything else by --set.

    `tpu` computes attention in one kernel and lets chips exchange what they compute in.
    """
    dtype = "bfloat16" if bfloat16 else "float32"
    attention = FusedAttention() if tpu else PlainAttention()
    vocabulary = corpus_vocabulary(prepared)
    short = max(1, round(0.9 * steps))
    phases = [Phase(steps=short, length=128, batch_size=batch_size, max_predictions=20)]
    if steps > short:
        phases.append(
            Phase(steps=steps - short, length=512, batch_size=batch_size, max_predictions=77)
        )
    evaluation = Evaluation(prepared=heldout, every=max(1, steps // 100)) if heldout else None
    return Experiment(
        name=f"bert-{size}",
        seed=seed,
        program=Pretraining(
            model=bert(size, vocab_size=vocabulary.size),
            mask_token_id=vocabulary.mask_id,
            compute=Compute(dtype=dtype, attention=attention),
        ),
        data=LoaderConfig(prepared=prepared),
        train=Train(
            phases=tuple(phases),
            optimizer=AdamW(),
            schedule=WarmupLinear(peak=learning_rate, warmup_steps=max(1, steps // 100)),
            checkpoints=Checkpoints(every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=mesh(layout, dtype if tpu else "float32"),
    )
