"""Trains from Python, with the names of the flags: `finetune`, `pretrain`, `train_embeddings`.

    model = bert_jax.finetune("bert", train=frame, dev=frame_2, text="review", label="sentiment")
    model.predict("A fine film.")

Each function is the verb of the same name of the command line: the same settings, checks and run
folder, which the command line also resumes, evaluates and exports.
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from bert_jax.api.tables import split_tables, table_file
from bert_jax.api.trained import FineTunedModel, TrainedEmbedder, TrainedModel
from bert_jax.cli import embed_train
from bert_jax.cli import finetune as finetune_verb
from bert_jax.cli import pretrain as pretrain_verb
from bert_jax.cli.arguments import RunArguments
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import ColumnsKind
from bert_jax.config.train import TrackerName
from bert_jax.config.tuning import MethodName
from bert_jax.errors import ConfigError, did_you_mean
from bert_jax.io.log_handler import set_up_logging
from bert_jax.parallel.processes import config_from_environment, initialize
from bert_jax.pretrained.load import AnyModel
from bert_jax.runs.run_folder import TABLES
from bert_jax.train.preemption import EXIT_DONE
from bert_jax.train.run import run as run_experiment

T = TypeVar("T")
Model = str | Path | AnyModel | TrainedModel
"""A pretrained model: its path, or the model itself, of which the path is used."""


def finetune(
    model: Model | None,
    *,
    train: Any = None,
    dev: Any = None,
    test: Any = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    kind: ColumnsKind | None = None,
    task: str = "columns",
    run: str | Path | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    method: MethodName | None = None,
    seed: int | None = None,
    **flags: Any,
) -> FineTunedModel:
    """Fine-tunes a pretrained encoder on labeled texts, as `bert-jax finetune` does.

    Args:
      model: the pretrained model; None with `teacher` and `teacher_layers`.
      train, dev, test: each a path, a list of dicts, or a table of pandas, Polars, PyArrow or
        datasets. `train` may be a DatasetDict, whose splits are used.
      text, text_pair, label: the columns of the texts and of the label.
      kind: the kind of task; None: classification or regression, as the labels show.
      task: "columns" for tables, or another TASK of `bert-jax finetune --help`.
      run: the run folder, resumed if it exists; None: a new temporary folder.
      epochs, batch_size, learning_rate, max_length, method, seed: None for the usual values, which
        `bert-jax finetune --help` lists.
      flags: other flags of `bert-jax finetune`, with underscores, such as `rank=16`.

    Returns:
      The fine-tuned model with the best score on dev.

    Raises:
      UserError: data, model or settings do not fit; the message says what to change.
    """
    folder = _run_folder(run)
    columns = {"text": text, "text_pair": text_pair, "label": label, "kind": kind}
    # All that says how a table is read, so that `evaluate` reads another one in the same way.
    others = {name: flags[name] for name in ("id", "label_separator", "encoding") if name in flags}
    columns = {name: value for name, value in (columns | others).items() if value is not None}
    settings = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "method": method,
        "seed": seed,
    }
    arguments = _arguments(
        finetune_verb.Arguments,
        {
            "task": task,
            "model": None if model is None else _path(model),
            "run": str(folder),
            **_files({"train": train, "dev": dev, "test": test}, folder),
            **{name: value for name, value in settings.items() if value is not None},
            **flags,
            **columns,
        },
    )
    complete = finetune_verb.run(arguments) == EXIT_DONE
    return FineTunedModel(folder, complete=complete, columns=columns if task == "columns" else None)


def pretrain(
    recipe: str | Path | Experiment,
    *,
    run: str | Path | None = None,
    corpora: tuple[str, ...] = (),
    init_from: Model | None = None,
    set: tuple[str, ...] = (),
    checkpoints: str | None = None,
    overwrite: bool = False,
    track: TrackerName | None = None,
    **arg: Any,
) -> TrainedModel:
    """Trains a recipe, as `bert-jax pretrain` does; `pretrain("bert", corpus="prepared")`.

    Args:
      recipe: a name that `bert-jax recipes` lists, a Python file, or an `Experiment` of your own.
      run: the run folder, resumed if it exists; None: a new temporary folder.
      corpora: prepared corpora to mix, "FOLDER" or "FOLDER=WEIGHT".
      init_from: initial weights.
      set: "FIELD=VALUE" for fields of the config.
      checkpoints: folder of the checkpoints, also gs://; None: in the run folder.
      overwrite: whether to remove the run in the run folder first, and start again.
      track: an experiment tracker that gets the metrics, too.
      arg: arguments of the recipe, such as `size="tiny"` and `steps=1000`.

    Returns:
      The trained model.

    Raises:
      UserError: data, recipe or folder do not fit; the message says what to change.
    """
    folder = _run_folder(run)
    if isinstance(recipe, Experiment):
        if corpora or init_from or set or arg:
            raise ConfigError("an Experiment is complete; change its fields instead of arguments")
        initialize(config_from_environment())
        arguments = RunArguments(
            run=str(folder), overwrite=overwrite, checkpoints=checkpoints, track=track
        )
        experiment = arguments.tracked(recipe)
        code = run_experiment(experiment, arguments.clear_run_folder(experiment), checkpoints)
    else:
        values = {
            "config": str(recipe),
            "run": str(folder),
            "corpora": corpora,
            "init_from": init_from and _path(init_from),
            "checkpoints": checkpoints,
            "overwrite": overwrite,
            "track": track,
            "set": set,
            "arg": tuple(f"{name}={_word(value)}" for name, value in arg.items()),
        }
        code = pretrain_verb.run(_arguments(pretrain_verb.Arguments, values))
    return TrainedModel(folder, complete=code == EXIT_DONE)


def train_embeddings(
    model: Model,
    *,
    train: Any = None,
    texts: tuple[str, ...] | None = None,
    score: str | None = None,
    label: str | None = None,
    dev: Any = None,
    dev_columns: tuple[str, str, str] | None = None,
    data: str = "columns",
    run: str | Path | None = None,
    loss: embed_train.LossName | None = None,
    **flags: Any,
) -> TrainedEmbedder:
    """Trains an encoder to embed texts, as `bert-jax embed-train` does.

    Args:
      model: the pretrained model.
      train: a path, a list of dicts, or a table of pandas, Polars, PyArrow or datasets.
      texts: the columns of the texts: one; two for pairs; or anchor, positive, hard negatives.
      score, label: the column of the similarity, or of the class, of a pair.
      dev: pairs with scores, as `train`; "stsb" with `glue_dir`.
      dev_columns: columns of `dev`: text, text, score.
      data: "columns" for tables, or "nli" or "stsb" with the flags of their folders.
      run: the run folder, resumed if it exists; None: a new temporary folder.
      loss: None for the usual loss of the data.
      flags: other flags of `bert-jax embed-train`, with underscores, such as `batch_size=128`.

    Returns:
      The sentence encoder. After the losses "splade" and "maxsim", `SparseEmbedder` and
      `MultiVectorEmbedder` embed texts with its attribute `model`.

    Raises:
      UserError: data, model or settings do not fit; the message says what to change.
    """
    folder = _run_folder(run)
    settings = {
        "texts": texts and tuple(texts),
        "score": score,
        "label": label,
        "dev_columns": dev_columns and tuple(dev_columns),
        "loss": loss,
    }
    arguments = _arguments(
        embed_train.Arguments,
        {
            "data": data,
            "model": _path(model),
            "run": str(folder),
            **_files({"train": train, "dev": dev}, folder),
            **settings,
            **flags,
        },
    )
    return TrainedEmbedder(folder, complete=embed_train.run(arguments) == EXIT_DONE)


def _run_folder(run: str | Path | None) -> Path:
    """Returns the folder of a run, and shows the progress of training on stderr."""
    set_up_logging()
    return Path(tempfile.mkdtemp(prefix="bert-jax-") if run is None else run)


def _files(splits: dict[str, Any], folder: Path) -> dict[str, str]:
    tables = split_tables(splits)
    return {split: table_file(table, folder / TABLES, split) for split, table in tables.items()}


def _path(model: Model) -> str:
    if isinstance(model, AnyModel):
        return model.path
    return str(model.folder if isinstance(model, TrainedModel) else model)


def _word(value: Any) -> str:
    """Returns a value as `--arg` expects it: a text as it is, another value as JSON."""
    return str(value) if isinstance(value, (str, Path)) else json.dumps(value)


def _arguments(arguments: type[T], values: dict[str, Any]) -> T:
    """Makes the arguments of a verb; raises a ConfigError for a name that it does not have."""
    names = [field.name for field in dataclasses.fields(arguments)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise ConfigError(f"there is no setting {name!r}; {did_you_mean(name, names)}")
    return arguments(**values)
