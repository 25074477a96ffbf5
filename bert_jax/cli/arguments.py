"""Defines the flags that several verbs share, and what they mean: tasks, recipes, models, texts.

A verb inherits the classes whose flags it has. In `--help` the flags of the last base come first.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from bert_jax.config.config_lib import override
from bert_jax.config.data import CorpusMixture, PretrainingData, WeightedCorpus
from bert_jax.config.experiment import Experiment, check_experiment
from bert_jax.config.flags import (
    REQUIRED,
    check_needs,
    first_given,
    flag,
    flag_name,
    given,
    positional,
    switch,
)
from bert_jax.config.labeled_data import (
    GLUE_NAMES,
    Columns,
    ColumnsKind,
    Conll,
    Glue,
    GlueName,
    Snli,
    Squad,
    Swag,
    TaskConfig,
)
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.train import TrackerName
from bert_jax.errors import ConfigError, UserError, check_range
from bert_jax.models.sentence_encoder.config import PoolingMode

if TYPE_CHECKING:
    from bert_jax.predict.predictor import Predictor
    from bert_jax.predict.setfit import SetFitClassifier

TASKS_HELP = """\
TASK is one of (default: columns)
  glue/NAME  with --glue-dir, the folder of the official files, or without, from TFDS
             (NAME: cola sst2 mrpc stsb qqp mnli qnli rte wnli ax)
  snli       with --snli-dir, the folder of the official files
  squad      with --train, --dev, --test: JSON files; --squad-version 2.0 if some have no answer
  conll      with --train, --dev, --test: a word and its tag on each line
  swag       with --train, --dev, --test: CSV files with endings to choose from
  columns    with --train, --dev, --test: your CSV, TSV, JSONL or Parquet; --text, --label, ...
"""

MODEL_WITH_HEAD = """\
MODEL is a run folder (of finetune or setfit), an export, another Hugging Face folder of a
model with a head, or an adapter folder of the peft library."""
"""Describes MODEL in the epilog of verbs that need the head of a task."""

MODEL_WITHOUT_HEAD = """\
MODEL is an export, a run folder, one of its checkpoints, or any Hugging Face folder of an
encoder."""
"""Describes MODEL in the epilog of verbs that need no head of a task."""

PRETRAINED = (
    "pretrained model: a run folder, a Hugging Face folder, ORG/NAME of the hub or a Google TF1 "
    "checkpoint"
)
RUN_FOLDER = "run folder; resumed if it exists"
CONTAMINATION = (
    "output folder of `bert-jax curate` with a step Decontamination; the metrics are then also "
    "computed on the examples that are not in the pretraining corpus (default: the folder of the "
    "model, if it has the file contamination-items.parquet)"
)

_FILES = ("train", "dev", "test")
COLUMNS = "columns"
"""The TASK if a command names none: files of its own."""
# Task -> the flags that it takes. They are names of fields of its config, except _FLAG_TO_FIELD.
_TASK_FLAGS: dict[str, tuple[str, ...]] = {
    "glue": ("glue_dir",),
    "snli": ("snli_dir",),
    "squad": (*_FILES, "squad_version", "strict"),
    "conll": (*_FILES, "word_column", "tag_column", "strict", "encoding"),
    "swag": (*_FILES, "encoding"),
    "columns": (
        *_FILES,
        "text",
        "text_pair",
        "label",
        "id",
        "kind",
        "label_separator",
        "encoding",
    ),
}
_FLAG_TO_FIELD = {"glue_dir": "folder", "snli_dir": "folder", "squad_version": "version"}
_TEXT_GROUP_SIZE = 256
DEFAULT_CANDIDATES = 100

_data = partial(flag, group="data of the task")


@dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """Names a fine-tuning task and its data. No flag of the data has a default."""

    task: str = positional("TASK", "glue/NAME, snli, squad, conll, swag or columns", COLUMNS)
    glue_dir: str | None = _data("DIR", "folder with CoLA/train.tsv and so on")
    snli_dir: str | None = _data("DIR", "folder with snli_1.0_train.jsonl and so on")
    train: str | None = _data("FILE", "train examples, plain or .gz")
    dev: str | None = _data("FILE", "dev examples, plain or .gz")
    test: str | None = _data("FILE", "test examples, plain or .gz")
    squad_version: Literal["1.1", "2.0"] | None = _data(
        "", "format of the SQuAD files (default: 1.1)"
    )
    word_column: int | None = _data("N", "column of the words, counted from 0 (default: 0)")
    tag_column: int | None = _data("N", "column of the tags (default: -1, the last)")
    strict: bool | None = switch(
        "error on malformed tags and misplaced answers, which are otherwise repaired",
        None,
        group="data of the task",
    )
    text: str | None = _data("COLUMN", "column of the text")
    text_pair: str | None = _data("COLUMN", "column of the second text")
    label: str | None = _data("COLUMN", "column of the label")
    id: str | None = _data("COLUMN", "column of the ids (default: row numbers)")
    kind: ColumnsKind | None = _data(
        "",
        "type of the labels; with multi-label, a text has any number of them; ranking trains a "
        "cross-encoder on pairs with labels from 0 to 1 (default: classification or regression, "
        "inferred from the labels)",
    )
    label_separator: str | None = _data(
        "TEXT",
        "with --kind multi-label: what separates labels in a cell of CSV or TSV (default: a "
        "comma); JSON lines and Parquet may have lists instead",
    )
    encoding: str | None = _data(
        "NAME", "encoding of the files of conll, swag and columns (default: utf-8)"
    )

    def task_config(self) -> TaskConfig:
        """Returns the config of the task that the flags describe.

        Raises:
          ConfigError: the task is unknown, does not take a flag, or needs one that is missing.
        """
        task, _, glue_name = self.task.partition("/")
        if task not in _TASK_FLAGS or bool(glue_name) != (task == "glue"):
            raise ConfigError(f"no task {self.task!r}; {TASKS_HELP}".rstrip())
        flags = self.data_flags()
        for name in flags:
            if name not in _TASK_FLAGS[task]:
                raise ConfigError(
                    f"{flag_name(name)} is not an option of the task {self.task}; its options are "
                    f"{', '.join(map(flag_name, _TASK_FLAGS[task]))}"
                )
        required = {"snli": "snli_dir", COLUMNS: "text"}.get(task)
        if required is not None and required not in flags:
            if task == COLUMNS and not flags:
                raise ConfigError(f"there is no TASK and no file; {TASKS_HELP}".rstrip())
            raise ConfigError(f"{self.task} needs {flag_name(required)}")
        fields: dict[str, Any] = {_FLAG_TO_FIELD.get(k, k): value for k, value in flags.items()}
        if task != "glue":
            kinds = {"snli": Snli, "squad": Squad, "conll": Conll, "swag": Swag, "columns": Columns}
            return kinds[task](**fields)
        if glue_name not in GLUE_NAMES:
            raise ConfigError(
                f"GLUE has no task {glue_name!r}; expected one of {', '.join(GLUE_NAMES)}"
            )
        return Glue(task=cast(GlueName, glue_name), **fields)

    def data_flags(self) -> dict[str, Any]:
        """Returns the given flags of the data by the names of their fields."""
        return {k: v for k, v in given(self, of=TaskArguments).items() if k != "task"}

    def command(self) -> list[str]:
        """Returns TASK and its flags as the user gave them, for a subprocess."""
        # As one word, because argparse would read a value that begins with "-" as a flag.
        return [self.task] + [
            flag_name(name) if value is True else f"{flag_name(name)}={value}"
            for name, value in self.data_flags().items()
        ]


def seeds_from_count(num_seeds: int) -> tuple[int, ...]:
    """Returns the seeds that --num-seeds describes; raises a ConfigError if it is out of range."""
    check_range("--num-seeds", num_seeds, at_least=1, at_most=1000)
    return tuple(range(num_seeds))


@dataclass(frozen=True, kw_only=True)
class OverrideArguments:
    """Changes the config that a recipe builds."""

    arg: tuple[str, ...] = flag("NAME=VALUE", "arguments of get_config in the recipe", ())
    set: tuple[str, ...] = flag(
        "FIELD=VALUE", "fields of the config, as in train.schedule.peak_learning_rate=2e-4", ()
    )

    def experiment_from(self, recipe: str, mixture: CorpusMixture | None = None) -> Experiment:
        """Returns the config that a recipe builds with --arg, --corpora and --set.

        Args:
          recipe: its name or file.
          mixture: the corpora of the config; None: the one that the recipe names.

        Raises:
          ConfigError: a name is unknown (the nearest is given), or a value is invalid.
        """
        arguments = list(self.arg)
        if mixture is not None:
            if any(each.startswith("corpus=") for each in arguments):
                raise ConfigError(
                    "--corpora and --arg corpus=... are both given, expected one of them"
                )
            arguments.append(f"corpus={mixture.corpora[0].folder}")  # has the tokenizer of all
        experiment = check_experiment(call_recipe(load_recipe(recipe), arguments, recipe), recipe)
        if mixture is not None:
            if not isinstance(experiment.data, PretrainingData):
                raise ConfigError(
                    f"--corpora: the data of {recipe} is {type(experiment.data).__name__}, "
                    "expected PretrainingData"
                )
            data = dataclasses.replace(experiment.data, corpus=mixture)
            experiment = dataclasses.replace(experiment, data=data)
        return override(experiment, self.set)


@dataclass(frozen=True, kw_only=True)
class RecipeArguments(OverrideArguments):
    """Names a recipe and changes what it builds."""

    config: str = positional(
        "CONFIG", "recipe: a name that `bert-jax recipes` lists, or a Python file"
    )

    def experiment(self) -> Experiment:
        """Returns the config that the arguments describe."""
        return self.experiment_from(self.config)


@dataclass(frozen=True, kw_only=True)
class CorporaArguments(RecipeArguments):
    """Names a recipe, changes what it builds, and mixes corpora."""

    corpora: tuple[str, ...] = flag(
        "FOLDER[=WEIGHT]",
        "prepared corpora to mix, with their fractions of the training tokens, instead of "
        "--arg corpus=FOLDER; without weights, in proportion to their tokens",
        (),
    )

    def experiment(self) -> Experiment:
        """Returns the config that the arguments describe."""
        mixture = parse_mixture(self.corpora) if self.corpora else None
        return self.experiment_from(self.config, mixture)


def parse_mixture(words: tuple[str, ...]) -> CorpusMixture:
    """Parses "FOLDER" and "FOLDER=WEIGHT".

    Raises:
      ConfigError: a weight is not a positive number, or a folder occurs twice.
    """
    corpora: list[WeightedCorpus] = []
    for word in words:
        folder, separator, text = word.rpartition("=")
        if not separator:
            corpora.append(WeightedCorpus(folder=word))
            continue
        try:
            corpora.append(WeightedCorpus(folder=folder, weight=float(text)))
        except ValueError:
            raise ConfigError(
                f"--corpora {word}: the weight is {text!r}, expected a number, as in books=0.3"
            ) from None
    return CorpusMixture(corpora=tuple(corpora))


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """Names the folders of a run."""

    run: str = flag("FOLDER", RUN_FOLDER, REQUIRED)
    overwrite: bool = switch("remove the run in the run folder first, and start again")
    checkpoints: str | None = flag(
        "URL",
        "folder of the checkpoints, as in gs://bucket/run/checkpoints (default: in the run "
        "folder); the run folder records it",
    )
    track: TrackerName | None = flag(
        "",
        "experiment tracker that also gets config, metrics and results; the extra of the same name "
        "installs it, and the environment has its keys",
    )

    def tracked(self, experiment: Experiment) -> Experiment:
        """Returns the config with --track; MissingExtraError if a tracker is not installed."""
        if self.track is not None:
            experiment = override(experiment, (f"train.logging.track={self.track}",))
        if experiment.train.logging.track is not None:
            from bert_jax.runs.trackers import check_tracker

            check_tracker(experiment.train.logging.track)
        return experiment

    def clear_run_folder(self, experiment: Experiment) -> Path:
        """Returns the run folder; with --overwrite, without the run that it held.

        Called after `initialize`, since process 0 removes it for all.

        Raises:
          UserError: the folder to overwrite is not a run folder, or has the initial weights.
        """
        folder = Path(self.run)
        if self.overwrite:
            from bert_jax.parallel.processes import run_on_process_0
            from bert_jax.runs.run_folder import remove_run

            run_on_process_0(lambda: remove_run(folder, experiment.init_from))
        return folder


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """Names a trained model."""

    model: str = positional(
        "MODEL", "run folder, exported model, Hugging Face folder, or ORG/NAME of the hub"
    )


@dataclass(frozen=True, kw_only=True)
class PredictionArguments(ModelArguments):
    """Names a model with the head of a task, and how much it computes at once."""

    base: str | None = flag(
        "FOLDER",
        "copy of the model that an adapter was trained on (default: that in the adapter's config)",
    )
    max_length: int | None = flag(
        "TOKENS", "maximum length of a sequence (default: as in training)"
    )
    batch_size: int = flag("N", "sequences computed at once", 32)


def load_predictor(
    args: PredictionArguments, task_field: str, settings: Mapping[str, Any]
) -> "Predictor | SetFitClassifier":
    """Loads MODEL with the head of its task; a run of SetFit has a classifier of its own.

    Args:
      task_field: the field of `args` that chooses the task of a run with several.
      settings: further arguments of `Predictor`, by the names of their flags.

    Raises:
      ConfigError: a flag was given that a model of SetFit does not have.
    """
    from bert_jax.predict.predictor import Predictor
    from bert_jax.predict.setfit import SetFitClassifier
    from bert_jax.pretrained.load import (
        LoadedSetFit,
        load_model,
        require_encoder,
        require_single_task,
    )

    model = load_model(args.model, getattr(args, task_field), args.base)
    if isinstance(model, LoadedSetFit):
        if name := first_given(args, "batch_size", *settings):
            raise ConfigError(f"{name} is not for {args.model}, a model of SetFit; remove it")
        return SetFitClassifier(model)
    model = require_encoder(model, "predict")
    require_single_task(model, f"--{task_field.replace('_', '-')}")
    return Predictor(model, batch_size=args.batch_size, **settings)


@dataclass(frozen=True, kw_only=True)
class PoolingArguments:
    """Chooses how the hidden states of a text become a vector."""

    pooling: PoolingMode | None = flag(
        "",
        "vector of a text, from the hidden states of all its tokens with [CLS] and [SEP]: "
        "that of [CLS], the maximum, the mean, the sum divided by the square root of their number, "
        "the mean weighted with their positions, or that of the last token (default: as the model "
        "was trained, or mean)",
    )


@dataclass(frozen=True, kw_only=True)
class VectorArguments(PoolingArguments):
    """Chooses how a text becomes a vector of some length."""

    normalize: bool | None = flag(
        "", "vectors of length 1, also after --dimensions (default: as the model was trained)"
    )
    dimensions: int | None = flag(
        "N",
        "number of leading components of a vector that are kept, for models trained with a "
        "Matryoshka loss (default: all)",
    )


@dataclass(frozen=True, kw_only=True)
class RerankArguments:
    """Names a cross-encoder that orders what a search has found."""

    rerank: str | None = flag("MODEL", "cross-encoder that orders the best texts again")
    candidates: int | None = flag(
        "N", f"texts that --rerank scores for each query (default: {DEFAULT_CANDIDATES})"
    )

    def __post_init__(self) -> None:
        check_needs(self, "rerank", "candidates")

    @property
    def num_candidates(self) -> int:
        """Returns --candidates or its default."""
        return DEFAULT_CANDIDATES if self.candidates is None else self.candidates


@dataclass(frozen=True, kw_only=True)
class EncodingArguments:
    """Says how the bytes of files are read."""

    encoding: str = flag("", "encoding of the texts", "utf-8")
    errors: Literal["strict", "replace", "ignore"] = flag(
        "",
        "treatment of bytes that are not valid text (default: strict, which is an error)",
        "strict",
    )

    def check_encoding(self, texts: tuple[str, ...], files: tuple[str, ...]) -> None:
        """Raises a ConfigError if --encoding or --errors is given, but all texts are words."""
        if texts and not files and (name := first_given(self, "encoding", "errors")):
            raise ConfigError(f"{name} is for files and standard input, but TEXT is given")


@dataclass(frozen=True, kw_only=True)
class TextArguments(EncodingArguments):
    """Names texts: words of the command, files, or standard input."""

    texts: tuple[str, ...] = positional("TEXT", "text to read", ())
    file: tuple[str, ...] = flag(
        "FILE",
        "file or glob pattern: .txt with a text on each line, or .jsonl with a field 'text', "
        "plain or compressed (.gz, .bz2, .zst); repeatable (default without TEXT: standard input)",
        (),
        action="append",
    )

    def __post_init__(self) -> None:
        self.check_encoding(self.texts, self.file)


def text_groups(args: Any) -> Iterator[list[str]]:
    """Yields groups of texts in order; on a terminal, one text at a time.

    Empty lines are yielded too, so that line N of the output belongs to line N of the input.

    Args:
      args: has the fields of `TextArguments`.
    """
    group_size = _TEXT_GROUP_SIZE
    if args.texts or args.file:
        texts = _texts_from_arguments(args)
    else:
        texts = _texts_from_stdin(args)
        if sys.stdin is not None and sys.stdin.isatty():  # a person types: answer after each line
            group_size = 1
    while group := list(islice(texts, group_size)):
        yield group


def _texts_from_arguments(args: Any) -> Iterator[str]:
    from bert_jax.text.files import expand_globs, read_documents
    from bert_jax.text.tokenizer import check_unicode

    check_unicode(args.texts)
    yield from args.texts
    for path in expand_globs(args.file) if args.file else ():
        read_options = {"encoding": args.encoding, "errors": args.errors}
        for _, text in read_documents(path, document_unit="line", keep_empty=True, **read_options):
            yield text


def _texts_from_stdin(args: Any) -> Iterator[str]:
    from bert_jax.text.files import read_stream_lines

    if sys.stdin is None:  # Python's value if the shell has closed it (`<&-`)
        raise UserError("standard input is closed; expected a text on each line, TEXT or --file")
    for line in read_stream_lines(
        sys.stdin.buffer, "standard input", encoding=args.encoding, errors=args.errors
    ):
        yield line.strip()
