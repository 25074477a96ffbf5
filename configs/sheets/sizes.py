"""Measures the loss of four sizes, and forecasts the largest from the three others.

    bert-jax sheet sizes --output runs/sizes \\
        --arg corpus=data/train heldout=data/heldout blimp='blimp/*.jsonl.gz'

Every model reads the same number of tokens, so larger ones spend more FLOPs. A power law of the
loss in FLOPs (Kaplan et al. 2020) is fitted to the three smaller models.
"""

from bert_jax.apps.studies.sheets.evaluations import HELD_OUT, measures, systems_of
from bert_jax.apps.studies.sheets.sheet import Budget, Forecast, Pretrain, Sheet

_SIZES = {"1 x 64": (1, 64), "2 x 128": (2, 128), "3 x 192": (3, 192), "4 x 256": (4, 256)}
"""Layers and width of each model."""


def get_config(
    *,
    corpus: str,
    heldout: str,
    blimp: str | None = None,
    task: str | None = None,
    metric: str = "accuracy",
    architecture: str = "modernbert",
    budget: float = 6e6,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Sheet:
    """Returns the sheet.

    Args:
      corpus, heldout: folders that `bert-jax prepare` has written.
      blimp: FILE and flags of `bert-jax minimal-pairs`.
      task: TASK and flags of `bert-jax finetune`.
      metric: the metric of the task on dev.
      architecture: as in configs/pretrain/comparison.py; BERT's learned positions need several
        times as many updates until such a small model is better than a unigram model.
      budget: tokens of each model, padding included.
    """
    data = {"corpus": corpus, "heldout": heldout, "objective": "mlm", "architecture": architecture}
    models = {
        name: Pretrain(
            recipe="comparison",
            arguments={**data, "num_layers": num_layers, "hidden_size": hidden_size},
        )
        for name, (num_layers, hidden_size) in _SIZES.items()
    }
    measured = measures(blimp=blimp, task=task, metric=metric)
    *fitted, largest = _SIZES
    return Sheet(
        title="Sizes",
        question="How does the loss fall with the size of the model, and is the loss of the next "
        "size predictable? Every model reads the same number of tokens.",
        columns=tuple(measured),
        models=models,
        systems=systems_of(models, measured),
        reference="2 x 128",
        budget=Budget(unit="tokens", amount=budget),
        seeds=seeds,
        curves=("mlm_loss",),
        forecast=Forecast(column=HELD_OUT.name, fitted=tuple(fitted), predicted=(largest,)),
    )
