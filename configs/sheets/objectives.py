"""Compares objectives of pretraining that spend the same number of FLOPs.

    bert-jax sheet objectives --output runs/objectives \\
        --arg corpus=data/train heldout=data/heldout blimp='blimp/*.jsonl.gz' \\
              task='glue/cola --glue-dir glue_data' metric=matthews

Masked LM with and without next-sentence prediction (Devlin et al. 2019; Liu et al. 2019), with
sentence order (Lan et al. 2020), of spans (Joshi et al. 2020), replaced tokens (Clark et al. 2020),
left to right (the ablation in Devlin et al. 2019, section 5.1) and masked diffusion (Sahoo et al.
2024). The held-out loss is shown for the objectives that predict single tokens, masked at a fixed
rate.
"""

from bert_jax.apps.studies.sheets.evaluations import measures, systems_of
from bert_jax.apps.studies.sheets.sheet import Budget, Pretrain, Sheet

_OBJECTIVES = {
    "MLM and NSP (BERT)": "mlm+nsp",
    "MLM (RoBERTa)": "mlm",
    "MLM and SOP (ALBERT)": "mlm+sop",
    "spans (SpanBERT)": "spans",
    "replaced tokens (ELECTRA)": "replaced_tokens",
    "left to right": "left_to_right",
    "masked diffusion (MDLM)": "diffusion",
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
    models = {
        name: Pretrain(
            recipe="comparison",
            arguments={"corpus": corpus, "heldout": heldout, "objective": objective},
        )
        for name, objective in _OBJECTIVES.items()
    }
    measured = measures(blimp=blimp, task=task, metric=metric)
    return Sheet(
        title="Objectives",
        question="What do next-sentence prediction, sentence order, spans, replaced tokens, masks "
        "at all rates and the view of both sides contribute? Every model spends the same number of "
        "FLOPs.",
        columns=tuple(measured),
        models=models,
        systems=systems_of(
            models,
            measured,
            without_loss=(
                "spans (SpanBERT)",
                "replaced tokens (ELECTRA)",
                "left to right",
                "masked diffusion (MDLM)",
            ),
            without_task=("left to right",),
        ),
        reference="MLM and NSP (BERT)",
        budget=Budget(unit="FLOPs", amount=budget),
        seeds=seeds,
        curves=("mlm_loss",),
    )
