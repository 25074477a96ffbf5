"""Compares methods of fine-tuning: what is learned, how far weights move, and what is forgotten.

    bert-jax sheet tuning --output runs/tuning \\
        --arg model=exported corpus=data/heldout task='glue/mrpc --glue-dir glue_data'

Every method fine-tunes the same encoder on the same examples with the same seeds. The columns are
the metric of the task on dev; the masked-LM loss on general text afterwards, with the head of the
pretrained model; and the relative distance of the weight matrices, |after - before| / |before|, of
the embeddings and of the last layer.
"""

import json
import shlex
from typing import Any

from bert_jax.apps.studies.sheets.sheet import Column, Evaluation, Make, Result, Sheet, System

_METHODS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "layer-wise decay 0.5": {"layerwise_lr_decay": 0.5},
    "embeddings frozen": {"frozen": ["encoder/embeddings/**"]},
    "encoder frozen": {"frozen": ["encoder/**"]},
    "unfreezing from the top": {"unfreeze_every": "{unfreeze_every}"},
    "top layer fresh": {"reinit_layers": 1},
    "L2-SP": {
        "weight_anchor": {"type": "L2SP", "encoder_strength": 0.01, "head_strength": 0.0},
    },
    "EWC": {"weight_anchor": {"type": "EWC", "fisher": "{fisher}", "strength": 1e4}},
}


def get_config(
    *,
    model: str,
    corpus: str,
    task: str,
    metric: str = "accuracy",
    epochs: float = 1.0,
    learning_rate: float = 3e-4,
    unfreeze_every: int = 30,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Sheet:
    """Returns the sheet.

    Args:
      model: a pretrained model with a masked-LM head.
      corpus: general text, a folder that `bert-jax prepare` has written.
      task: TASK and flags of `bert-jax finetune`.
      metric: the metric of the task on dev.
      epochs, learning_rate: of all methods.
      unfreeze_every: updates after which one more layer is trained, from the top.
    """
    fine_tune = (
        *("finetune", *shlex.split(task), "--model", model, "--run", "{folder}"),
        *("--seed", "{seed}", "--epochs", str(epochs), "--learning-rate", str(learning_rate)),
    )
    forgetting = ("forgetting", model, "{model}", "--corpus", corpus, "--output", "{folder}/f.json")
    evaluations = {
        Column(name=metric, percent=True): Evaluation(
            value=Result(file="evaluation.json", keys=("dev", metric))
        ),
        Column(name="masked-LM loss after", lower_is_better=True): Evaluation(
            command=forgetting, value=Result(file="f.json", keys=("after", "mlm_loss"))
        ),
        Column(name="moved, embeddings"): Evaluation(
            command=forgetting, value=Result(file="f.json", keys=("distance_by_depth", 0))
        ),
        Column(name="moved, last layer"): Evaluation(
            command=forgetting, value=Result(file="f.json", keys=("distance_by_depth", -1))
        ),
    }
    by_name = {column.name: evaluation for column, evaluation in evaluations.items()}
    names = {"fisher": "{setup}/fisher/fisher.safetensors", "unfreeze_every": unfreeze_every}
    return Sheet(
        title="Methods of fine-tuning",
        question="Which method learns the task without forgetting the language?",
        columns=tuple(evaluations),
        models={
            name: Make(command=(*fine_tune, *_overrides(settings, names)))
            for name, settings in _METHODS.items()
        },
        systems=tuple(System(name=name, model=name, evaluations=by_name) for name in _METHODS),
        reference="all weights",
        seeds=seeds,
        setup={
            "fisher": (
                *("fisher", model, "--corpus", corpus),
                *("--output", "{folder}/fisher.safetensors"),
            )
        },
    )


def _overrides(settings: dict[str, Any], names: dict[str, Any]) -> tuple[str, ...]:
    """Returns `--set` of settings, with the values of {fisher} and {unfreeze_every}."""
    texts = [f"train.tuning.{name}={json.dumps(value)}" for name, value in settings.items()]
    for name, value in names.items():
        quoted = json.dumps(f"{{{name}}}")
        texts = [text.replace(quoted, json.dumps(value)) for text in texts]
    return ("--set", *texts) if texts else ()
