"""Compares architectures that spend the same number of FLOPs on the same objective.

    bert-jax sheet families --output runs/families \\
        --arg corpus=data/train heldout=data/heldout blimp='blimp/*.jsonl.gz'

BERT, ALBERT (shared layers), DeBERTa (disentangled attention), ModernBERT and EuroBERT (rotary
positions, gated layers) of equal width and depth, trained with masked LM. ALBERT has fewer
parameters, so its FLOPs buy no more updates than BERT's.
"""

from bert_jax.apps.studies.sheets.evaluations import measures, systems_of
from bert_jax.apps.studies.sheets.sheet import Budget, Pretrain, Sheet

_ARCHITECTURES = {
    "BERT": "bert",
    "ALBERT": "albert",
    "DeBERTa": "deberta",
    "ModernBERT": "modernbert",
    "EuroBERT": "eurobert",
}


def get_config(
    *,
    corpus: str,
    heldout: str,
    blimp: str | None = None,
    task: str | None = None,
    metric: str = "accuracy",
    budget: float = 3e13,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Sheet:
    """Returns the sheet.

    Args:
      corpus, heldout: folders that `bert-jax prepare` has written.
      blimp: FILE and flags of `bert-jax minimal-pairs`.
      task: TASK and flags of `bert-jax finetune`.
      metric: the metric of the task on dev.
      budget: model FLOPs of each model.
    """
    data = {"corpus": corpus, "heldout": heldout, "objective": "mlm"}
    models = {
        name: Pretrain(recipe="comparison", arguments={**data, "architecture": architecture})
        for name, architecture in _ARCHITECTURES.items()
    }
    measured = measures(blimp=blimp, task=task, metric=metric)
    return Sheet(
        title="Families",
        question="Which architecture learns more from the same FLOPs, at equal width and depth?",
        columns=tuple(measured),
        models=models,
        systems=systems_of(models, measured),
        reference="BERT",
        budget=Budget(unit="FLOPs", amount=budget),
        seeds=seeds,
        curves=("mlm_loss",),
    )
