"""Goes on pretraining a model on the text of a domain or a task (Gururangan et al. 2020).

    bert-jax prepare --files domain/*.txt --vocab exported --output prepared
    bert-jax pretrain configs/pretrain/adapt.py --run runs/adapted \\
        --with prepared=prepared model=exported
    bert-jax finetune columns --model runs/adapted ...

Domain-adaptive pretraining takes all text of the domain at hand, task-adaptive pretraining the
unlabelled text of the task itself, for many epochs: `--documents-by line` reads a file with one
example on each line. Masked LM alone; short texts share rows without seeing each other.
"""

from bert_jax.data.config import LoaderConfig, Packed
from bert_jax.data.prepared import corpus_vocabulary
from bert_jax.experiment import Experiment
from bert_jax.programs.config import Pretraining
from bert_jax.train.config import Checkpoints, Evaluation, Phase, Train, WarmupLinear


def get_config(
    *,
    prepared: str,
    model: str,
    heldout: str | None = None,
    steps: int = 12_500,
    batch_size: int = 256,
    length: int = 128,
    learning_rate: float = 1e-4,
    seed: int = 0,
) -> Experiment:
    """The paper's 12,500 updates of 256 rows for a domain; a task's text needs far fewer."""
    # Here, because looking at a recipe needs no jax.
    from bert_jax.train.initial import load_any

    evaluation = Evaluation(prepared=heldout, every=max(1, steps // 10)) if heldout else None
    return Experiment(
        name="adapt",
        seed=seed,
        program=Pretraining(
            model=load_any(model).config,
            mask_token_id=corpus_vocabulary(prepared).mask_id,
            nsp_weight=0.0,
        ),
        data=LoaderConfig(prepared=prepared, examples=Packed()),
        init_from=model,
        train=Train(
            phases=(
                Phase(
                    steps=steps,
                    length=length,
                    batch_size=batch_size,
                    max_predictions=round(0.16 * length),
                ),
            ),
            schedule=WarmupLinear(peak=learning_rate, warmup_steps=round(0.06 * steps)),
            checkpoints=Checkpoints(every=max(1, steps // 10), keep_last=1),
            evaluation=evaluation,
        ),
    )
