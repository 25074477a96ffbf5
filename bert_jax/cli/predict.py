"""Runs `bert-jax predict`: prints the predictions of a fine-tuned model, as JSON lines."""

import contextlib
import json
import logging
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from bert_jax.cli.arguments import (
    MODEL_WITH_HEAD,
    EncodingArguments,
    PredictionArguments,
    load_predictor,
    text_groups,
)
from bert_jax.config.flags import check_needs, flag, given, positional, switch
from bert_jax.config.labeled_data import WindowPooling
from bert_jax.errors import ConfigError
from bert_jax.io.atomic_io import atomic_path, check_writable

if TYPE_CHECKING:
    from bert_jax.predict.predictor import Predictor
    from bert_jax.predict.setfit import SetFitClassifier
    from bert_jax.tasks.base import ModelInput

logger = logging.getLogger(__name__)

HELP = "predict labels, values, entities or answers; also classify without training (zero-shot)"

EPILOG = f"""\
examples:
  bert-jax predict runs/reviews "A fine film." "Two hours of my life."
  bert-jax predict runs/rte --pairs "It rains." "The street is wet."
  bert-jax predict runs/squad "Who wrote Emma?" "Jane Austen wrote Emma in 1815."
  bert-jax predict exported --file new.csv --text review --id key --output out.jsonl
  bert-jax predict runs/ner --file news.txt --format lines
  bert-jax predict nli-model --zero-shot sports,politics "The match ended in a draw."
  bert-jax predict runs/all --task rte --pairs "It rains." "The street is wet."

{MODEL_WITH_HEAD}
Without TEXT and --file, standard input is read, with a text on each line. If an input consists of
several texts, such as a question and its context, they are consecutive TEXTs, or separated by tabs
in a line.

Each prediction is one line. It has the text of the input, or the id for rows of tables, and
  {{"label": ..., "probabilities": {{...}}}}
  {{"labels": [...], "probabilities": {{...}}}}
  {{"value": ...}}
  {{"choice": ..., "probabilities": [...]}}
  {{"tags": [...], "entities": [{{"type", "start", "end", "text"}}], "words": [...]}}
  {{"answer", "start", "end", "score", "probability", "no_answer_score"}}
Start and end of answers and entities count characters; for CoNLL files, entities count words.
Line N of the output belongs to line N of a text file or of standard input: an empty line gets null,
or empty lists of tags and entities.
"""
COMMON = ("file", "text", "output", "pairs", "batch_size")

_SETTINGS = ("truncation", "window_pooling", "max_length", "window_overlap", "allow_no_answer")
_COLUMNS = ("text", "text_pair", "question", "context", "id")
_GROUP_SIZE = 1024


_files = partial(flag, group="files")
_long = partial(flag, group="long texts")
_zero = partial(flag, group="zero-shot classification")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


@dataclass(frozen=True, kw_only=True)
class Arguments(EncodingArguments, PredictionArguments):
    """Names the model, the texts or files, and how long texts are read."""

    texts: tuple[str, ...] = positional("TEXT", "text to predict for; see the examples", ())
    task: str | None = flag("NAME", "task to predict, for a run with several")
    pairs: bool = switch("pairs of texts instead of single texts")
    output: str | None = flag("FILE", "file to write (default: standard output)")
    file: tuple[str, ...] = _files(
        "FILE", "file or glob pattern of inputs; repeatable", (), action="append"
    )
    format: Literal["lines", "table", "conll", "squad", "swag"] | None = _files(
        "",
        "format of the files (default: from the name: .csv .tsv .jsonl .parquet are tables, "
        ".conll .iob .bio CoNLL, .json SQuAD)",
    )
    text: str | None = _files("COLUMN", "column of the text (default: text)")
    text_pair: str | None = _files("COLUMN", "column of the second text (default: none)")
    question: str | None = _files("COLUMN", "column of the question (default: question)")
    context: str | None = _files("COLUMN", "column of the context (default: context)")
    id: str | None = _files("COLUMN", "column of the ids (default: row numbers)")
    truncation: Literal["head", "tail", "head+tail", "windows"] | None = _long(
        "", "part that is read of a text longer than --max-length (default: as in training)"
    )
    window_pooling: WindowPooling | None = _long(
        "",
        "combination of the predictions of all windows of a text (default: as in training, or "
        "mean)",
    )
    window_overlap: int | None = _long(
        "TOKENS", "tokens that two consecutive windows have in common (default: as in training)"
    )
    zero_shot: tuple[str, ...] | None = _zero(
        "LABEL,LABEL",
        "classify into these labels without training; needs a model of MNLI, SNLI or another NLI "
        "dataset",
        type=_names,
    )
    hypothesis: str | None = _zero(
        "TEXT",
        "sentence built from each label, at {} in it (default: This example is {}.)",
    )
    multi_label: bool = _zero(
        "",
        "several labels can be right, each with a probability of its own",
        False,
        action="store_true",
    )
    allow_no_answer: bool | None = switch(
        "may predict that a question has no answer (default: as in training)", None
    )

    def __post_init__(self) -> None:
        check_needs(self, "zero_shot", "hypothesis", "multi_label")
        if self.zero_shot is not None and self.pairs:
            raise ConfigError("--pairs and --zero-shot: expected one of them")
        if self.texts and self.file:
            raise ConfigError("TEXT and --file are both given; expected one of them")
        check_needs(self, "file", "format", *_COLUMNS)
        self.check_encoding(self.texts, self.file)


def run(args: Arguments) -> None:
    """Writes one JSON line for each input, in order."""
    from tqdm import tqdm

    from bert_jax.predict.zero_shot import DEFAULT_HYPOTHESIS, ZeroShotClassifier

    if args.output:
        check_writable(args.output)
    settings = {name: getattr(args, name) for name in _SETTINGS}
    predictor: Any = load_predictor(args, "task", settings)
    if args.zero_shot is not None:
        predictor = ZeroShotClassifier(
            predictor,
            args.zero_shot,
            hypothesis=args.hypothesis or DEFAULT_HYPOTHESIS,
            multi_label=args.multi_label,
        )
    groups, total = _grouped_inputs(args, predictor)
    num_predictions = 0
    # On one terminal, a progress bar and output lines would overwrite each other.
    disable_bar = None if args.output or not sys.stdout.isatty() else True
    with (
        _open_output(args.output) as stream,
        tqdm(desc="predicting", total=total, unit=" texts", disable=disable_bar) as bar,
    ):
        for group in groups:
            for prediction in predictor(list(group), on_progress=bar.update):
                stream.write(json.dumps(prediction, ensure_ascii=False) + "\n")
                num_predictions += 1
            stream.flush()
    if not num_predictions:
        logger.warning("there is no input, so there is nothing to predict; see --help")
    if predictor.num_truncated:
        logger.warning(
            "%s of the inputs are longer than %d tokens and were truncated; see --truncation and "
            "--max-length",
            f"{predictor.num_truncated:,}",
            predictor.max_length,
        )


def _grouped_inputs(
    args: Arguments, predictor: "Predictor | SetFitClassifier"
) -> tuple[Iterator[Sequence["ModelInput"]], int | None]:
    """Returns groups of inputs, and the number of inputs, None for standard input."""
    from bert_jax.predict.files import group_arguments, parse_line, read_inputs
    from bert_jax.text.files import expand_globs

    kind = predictor.kind
    columns = given(args, *_COLUMNS)
    if args.pairs and not kind.reads_pairs:
        raise ConfigError(
            f"--pairs is not supported for {kind.name} models, whose inputs are "
            f"{kind.description.expected_input}; remove --pairs"
        )
    if not args.file and not args.texts:
        groups = text_groups(args)
        return ([parse_line(line, kind, args.pairs) for line in group] for group in groups), None
    inputs: list[Any] = group_arguments(args.texts, kind, args.pairs) if args.texts else []
    for path in expand_globs(args.file) if args.file else ():
        inputs += read_inputs(
            path,
            kind,
            file_format=args.format,
            columns=columns,
            pairs=args.pairs,
            encoding=args.encoding,
            errors=args.errors,
        )
    starts = range(0, len(inputs), _GROUP_SIZE)
    return (inputs[start : start + _GROUP_SIZE] for start in starts), len(inputs)


@contextlib.contextmanager
def _open_output(path: str | None) -> Generator[TextIO]:
    """Opens standard output, or a file that appears under its name once it is complete."""
    if path is None:
        yield sys.stdout
        return
    with atomic_path(Path(path)) as tmp_path, tmp_path.open("w", encoding="utf-8") as stream:
        yield stream
