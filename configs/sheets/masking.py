"""Compares ways of masking: how many tokens, what replaces them, and whole words.

    bert-jax sheet masking --output runs/masking \\
        --arg corpus=data/train heldout=data/heldout blimp='blimp/*.jsonl.gz'

Devlin et al. 2019 (appendix C.2) compare what replaces the tokens, Wettig et al. 2023 how many are
masked; masked diffusion (Sahoo et al. 2024) draws a rate for each sequence. All models are trained
with masked LM alone. The held-out loss is the mean at [MASK], 80 % of the 15 % of tokens that are
predicted: a model that was trained with [MASK] alone has never predicted tokens that it can see.
"""

from bert_jax.apps.studies.sheets.evaluations import measures, systems_of
from bert_jax.apps.studies.sheets.sheet import Budget, Pretrain, Sheet

_LOSS = "mlm_loss_masked"
_MASKINGS: dict[str, tuple[float, tuple[str, ...]]] = {
    "15 %, 80-10-10": (0.15, ()),
    "30 %, 80-10-10": (0.30, ()),
    "40 %, 80-10-10": (0.40, ()),
    "30 %, all masked": (
        0.30,
        ("data.masking.random_replace_prob=0.0", "data.masking.mask_replace_prob=1.0"),
    ),
    "30 %, whole words": (0.30, ("data.masking.whole_word_mask=true",)),
    "all rates, all masked": (
        0.30,
        ("data.masking=DiffusionMasking", "train.phases.0.max_predictions_per_seq=64"),
    ),
}


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
            arguments={**data, "mlm_probability": probability},
            overrides=overrides,
        )
        for name, (probability, overrides) in _MASKINGS.items()
    }
    measured = measures(loss=_LOSS, blimp=blimp, task=task, metric=metric)
    return Sheet(
        title="Masking",
        question="How many tokens should be masked, what should replace them, and should whole "
        "words be masked? Every model reads the same number of tokens.",
        columns=tuple(measured),
        models=models,
        systems=systems_of(models, measured),
        reference="15 %, 80-10-10",
        budget=Budget(unit="tokens", amount=budget),
        seeds=seeds,
        curves=(_LOSS,),
    )
