"""Runs `bert-jax predict`: prints the predictions of a fine-tuned model, as JSON lines."""

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bert_jax.cli.arguments.prediction import (
    MODEL_WITH_HEAD,
    add_base_argument,
    add_batch_size_argument,
    add_max_length_argument,
    add_model_argument,
    refuse_flags_of_heads,
)
from bert_jax.cli.arguments.text_inputs import text_groups
from bert_jax.errors import ConfigError
from bert_jax.io.atomic_io import atomic_path, check_writable

if TYPE_CHECKING:
    from bert_jax.predict.predictor import Predictor
    from bert_jax.predict.setfit import SetFitClassifier
    from bert_jax.tasks.base import ModelInput

logger = logging.getLogger(__name__)

HELP = "predict labels, values, entities, answers or choices with a fine-tuned model"

_EPILOG = f"""\
examples:
  bert-jax predict runs/reviews "A fine film." "Two hours of my life."
  bert-jax predict runs/rte --pairs "It rains." "The street is wet."
  bert-jax predict runs/squad "Who wrote Emma?" "Jane Austen wrote Emma in 1815."
  bert-jax predict exported --file new.csv --text review --id key --output out.jsonl
  bert-jax predict runs/ner --file news.txt --format lines
  bert-jax predict runs/all --task rte --pairs "It rains." "The street is wet."

{MODEL_WITH_HEAD}
Without TEXT and --file, standard input is read, with a text on each line. If an input consists of
several texts, such as a question and its context, they are consecutive TEXTs, or separated by tabs
in a line.

Each prediction is one line. It has the text of the input, or the id for rows of tables, and
  {{"label": ..., "probabilities": {{...}}}}
  {{"value": ...}}
  {{"choice": ..., "probabilities": [...]}}
  {{"tags": [...], "entities": [{{"type", "start", "end", "text"}}], "words": [...]}}
  {{"answer", "start", "end", "score", "probability", "no_answer_score"}}
Start and end of answers and entities count characters; for CoNLL files, entities count words.
Line N of the output belongs to line N of a text file or of standard input: an empty line gets null,
or empty lists of tags and entities.
"""
_SETTINGS = ("truncation", "window_pooling", "max_length", "window_overlap", "allow_no_answer")
_COLUMNS = ("text", "text_pair", "question", "context", "id")
_GROUP_SIZE = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, --base, --task, the texts or files, the options for long texts, and --output."""
    add_model_argument(parser)
    add_base_argument(parser)
    parser.add_argument("--task", metavar="NAME", help="task to predict, for a run with several")
    parser.add_argument(
        "texts", metavar="TEXT", nargs="*", default=[], help="text to predict for; see the examples"
    )
    parser.add_argument(
        "--pairs", action="store_true", help="pairs of texts instead of single texts"
    )
    parser.add_argument("--output", metavar="FILE", help="file to write (default: standard output)")
    _add_file_arguments(parser)
    long_texts = parser.add_argument_group("long texts")
    long_texts.add_argument(
        "--truncation",
        choices=("head", "tail", "head+tail", "windows"),
        help="part that is read of a text longer than --max-length (default: as in training)",
    )
    long_texts.add_argument(
        "--window-pooling",
        choices=("mean", "max", "first"),
        help="combination of the predictions of all windows of a text (default: as in training, "
        "or mean)",
    )
    add_max_length_argument(long_texts)
    long_texts.add_argument(
        "--window-overlap",
        type=int,
        metavar="TOKENS",
        help="tokens that two consecutive windows have in common (default: as in training)",
    )
    parser.add_argument(
        "--allow-no-answer",
        action="store_true",
        default=None,
        help="permission to predict that a question has no answer (default: as in training)",
    )
    add_batch_size_argument(parser)
    parser.epilog = _EPILOG


def _add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --file and how files are read."""
    files = parser.add_argument_group("files")
    files.add_argument(
        "--file",
        metavar="FILE",
        action="append",
        default=[],
        help="file or glob pattern of inputs; repeatable",
    )
    files.add_argument(
        "--format",
        choices=("lines", "table", "conll", "squad", "swag"),
        help="format of the files (default: from the name: .csv .tsv .jsonl .parquet are tables, "
        ".conll .iob .bio CoNLL, .json SQuAD)",
    )
    files.add_argument("--text", metavar="COLUMN", help="column of the text (default: text)")
    files.add_argument(
        "--text-pair", metavar="COLUMN", help="column of the second text (default: none)"
    )
    files.add_argument(
        "--question", metavar="COLUMN", help="column of the question (default: question)"
    )
    files.add_argument(
        "--context", metavar="COLUMN", help="column of the context (default: context)"
    )
    files.add_argument("--id", metavar="COLUMN", help="column of the ids (default: row numbers)")
    files.add_argument(
        "--encoding", default="utf-8", help="encoding of text files (default: utf-8)"
    )
    files.add_argument(
        "--errors",
        choices=("strict", "replace", "ignore"),
        default="strict",
        help="treatment of bytes that are not valid text (default: strict, which is an error)",
    )


def run(args: argparse.Namespace) -> None:
    """Writes one JSON line for each input, in order."""
    from tqdm import tqdm

    if args.output:
        check_writable(Path(args.output))
    predictor = _load_predictor(args)
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


def _load_predictor(args: argparse.Namespace) -> "Predictor | SetFitClassifier":
    from bert_jax.predict.predictor import Predictor
    from bert_jax.predict.setfit import SetFitClassifier, is_setfit_folder
    from bert_jax.pretrained.load import load_model

    settings = {name: getattr(args, name) for name in _SETTINGS}
    if is_setfit_folder(args.model):
        refuse_flags_of_heads(args, (*settings, "task", "base"))
        return SetFitClassifier(args.model)
    model = load_model(args.model, args.task, args.base)
    return Predictor(model, batch_size=args.batch_size, **settings)


def _grouped_inputs(
    args: argparse.Namespace, predictor: "Predictor | SetFitClassifier"
) -> tuple[Iterator[Sequence["ModelInput"]], int | None]:
    """Returns groups of inputs, and the number of inputs, None for standard input."""
    from bert_jax.predict.files import group_arguments, parse_line, read_inputs
    from bert_jax.text.files import expand_globs

    kind = predictor.kind
    columns = {name: value for name in _COLUMNS if (value := getattr(args, name)) is not None}
    if args.pairs and not kind.reads_pairs:
        raise ConfigError(
            f"--pairs is not supported for {kind.name} models, whose inputs are "
            f"{kind.description.expected_input}; remove --pairs"
        )
    if args.texts and args.file:
        raise ConfigError("TEXT and --file are both given; expected one of them")
    if not args.file and (args.format or columns):
        raise ConfigError("--format and names of columns need --file, which is not given")
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
