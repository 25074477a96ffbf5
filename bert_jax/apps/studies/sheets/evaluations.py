"""Describes what the shipped sheets measure: a column of the table with its evaluation."""

import shlex
from collections.abc import Collection, Mapping, Sequence

from bert_jax.apps.studies.sheets.sheet import Column, Evaluation, Result, System

Measures = Mapping[Column, Evaluation]

HELD_OUT = Column(name="held-out loss", lower_is_better=True)
"""The masked-LM loss on held-out text, in nats per masked token."""
BLIMP = Column(name="BLiMP", percent=True)

_EVALUATION = "evaluation.json"


def measures(
    *,
    loss: str = "mlm_loss",
    blimp: str | None = None,
    task: str | None = None,
    metric: str = "accuracy",
) -> dict[Column, Evaluation]:
    """Returns the held-out loss, and what else is given.

    Args:
      loss: the metric of the held-out evaluation.
      blimp: as `files` of `minimal_pairs`.
      task: TASK and flags of `bert-jax finetune`, separated by spaces.
      metric: the metric of the task on dev.
    """
    found = {HELD_OUT: held_out_loss(loss)}
    if blimp is not None:
        found[BLIMP] = minimal_pairs(blimp)
    if task is not None:
        words = shlex.split(task)
        # "columns" says nothing of the user's own table.
        name = metric if words[0] == "columns" else words[0].replace("/", " ")
        found[Column(name=name, percent=True)] = fine_tuning(words, metric)
    return found


def systems_of(
    models: Collection[str],
    measured: Measures,
    *,
    without_loss: Collection[str] = (),
    without_blimp: Collection[str] = (),
    without_task: Collection[str] = (),
) -> tuple[System, ...]:
    """Returns a system for each model.

    Args:
      models: the names of the models.
      measured: what is measured of each.
      without_loss: the models whose held-out loss cannot be compared with the others'.
      without_blimp: the models without a head that scores texts.
      without_task: the models that cannot be fine-tuned.
    """
    left_out = {
        HELD_OUT: without_loss,
        BLIMP: without_blimp,
        **{column: without_task for column in measured if column not in (HELD_OUT, BLIMP)},
    }
    return tuple(
        System(
            name=name,
            model=name,
            evaluations={
                column.name: evaluation
                for column, evaluation in measured.items()
                if name not in left_out[column]
            },
        )
        for name in models
    )


def held_out_loss(metric: str = "mlm_loss") -> Evaluation:
    """Returns the held-out loss at the end of pretraining, in nats per predicted token."""
    return Evaluation(value=Result(file=_EVALUATION, keys=(metric,)))


def minimal_pairs(files: str) -> Evaluation:
    """Returns the accuracy on minimal pairs, the mean over files.

    Args:
      files: FILE and flags of `bert-jax minimal-pairs`, separated by spaces.
    """
    file = "minimal_pairs.json"
    words = shlex.split(files)
    return Evaluation(
        command=("minimal-pairs", "{model}", *words, "--output", "{folder}/" + file),
        value=Result(file=file, keys=("all", "all", "value")),
        outcomes=Result(file=file, keys=("credits",)),
    )


def fine_tuning(task: Sequence[str], metric: str, *flags: str) -> Evaluation:
    """Returns a metric on dev after fine-tuning.

    Args:
      task: TASK and its flags, as `bert-jax finetune` takes them.
      metric: a metric of the task. It is compared over seeds: the files of predictions have no
        references, with which examples could be paired.
      flags: further flags, such as ("--epochs", "3").
    """
    command = ("finetune", *task, "--model", "{model}", "--run", "{folder}", "--seed", "{seed}")
    return Evaluation(
        command=(*command, *flags), value=Result(file=_EVALUATION, keys=("dev", metric))
    )


def frozen_features(task: Sequence[str], features: str, model: str = "{model}") -> Evaluation:
    """Returns the accuracy on dev of logistic regression on features that are not trained.

    Args:
      task: the flags of `bert-jax word-vectors classify`.
      features: the name of the features in its output, such as "scalar mix".
      model: the model; or "tf-idf" or "majority", which need none.
    """
    file = "classify.json"
    return Evaluation(
        command=("word-vectors", "classify", model, *task, "--output", "{folder}/" + file),
        value=Result(file=file, keys=("accuracy", features)),
        outcomes=Result(file=file, keys=("correct", features)),
    )


def probes(treebank: Mapping[str, str]) -> dict[Column, Evaluation]:
    """Returns the accuracy of the best layer for parts of speech, and the best layer's UUAS.

    Args:
      treebank: "train", "dev" and "test" -> a file in the CoNLL-U format.
    """
    files = [word for split, file in treebank.items() for word in (f"--{split}", file)]
    command = ("probe", "{model}", *files, "--output", "{folder}", "--seeds", "1", "--tasks")
    source = ("sources", "model")
    return {
        Column(name="UPOS", percent=True): Evaluation(
            command=(*command, "upos"),
            value=Result(file="probes.json", keys=("tasks", "upos", *source, "best_accuracy")),
        ),
        Column(name="UUAS", percent=True): Evaluation(
            command=(*command, "structure"),
            value=Result(file="probes.json", keys=("structure", *source, "best_uuas")),
        ),
    }


def similarity_to(model: str, texts: str) -> Evaluation:
    """Returns the linear CKA between the last layers of two models, on the tokens of texts.

    Args:
      model: the path of the other model.
      texts: a file, as for `bert-jax cka --file`.
    """
    return Evaluation(
        command=("cka", "{model}", model, "--file", texts, "--output", "{folder}"),
        value=Result(file="cka.json", keys=("cka", 0, "values", -1, -1)),
    )
