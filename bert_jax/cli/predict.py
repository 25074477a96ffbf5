"""`bert-jax predict`: what a fine-tuned model says of texts, as JSON lines."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bert_jax.atomic_io import atomic_path
from bert_jax.cli.arguments.text_inputs import text_groups
from bert_jax.errors import ConfigError, UserError

if TYPE_CHECKING:
    from bert_jax.predict.inputs import Input
    from bert_jax.predict.predictor import Predictor

HELP = "labels, values, entities, answers or choices of a fine-tuned model, as JSON lines"

_EPILOG = """\
examples:
  bert-jax predict --model runs/reviews "A fine film." "Two hours of my life."
  bert-jax predict --model runs/rte --pairs "It rains." "The street is wet."
  bert-jax predict --model runs/squad "Who mends the net?" "An old man mends a net by the sea."
  bert-jax predict --model exported --file new.csv --text review --id number --output said.jsonl
  bert-jax predict --model runs/ner --file news.txt --format lines
  bert-jax predict --model runs/all --task rte --pairs "It rains." "The street is wet."

MODEL is a run folder, an export, or another Hugging Face BERT folder with a head. Without TEXT and
--file, standard input is read, a text on each line. Where the model reads several texts, they stand
one after another as TEXTs, and in lines they have tabs between them.

Each answer is one line, with the text, or for rows of tables the id, that it is for:
  {"label": ..., "probabilities": {...}}
  {"value": ...}
  {"choice": ..., "probabilities": [...]}
  {"tags": [...], "entities": [{"type", "start", "end", "text"}], "words": [...]}
  {"answer", "start", "end", "score", "probability", "no_answer_score"}
Answers, and entities of texts, start and end at characters; entities of CoNLL's words at words.
"""
_COLUMNS = ("text", "text_pair", "question", "context", "id")
_GROUP_SIZE = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--model, --task, the texts or files and how they are read, long ones, --output."""
    parser.add_argument("--model", required=True, metavar="DIR", help="a run folder or an export")
    parser.add_argument("--task", metavar="NAME", help="of a run of several tasks: which one")
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="a text; see below")
    parser.add_argument("--pairs", action="store_true", help="texts come in pairs")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    files = parser.add_argument_group("files")
    files.add_argument(
        "--file", metavar="FILE", action="append", default=[], help="or a pattern; may be repeated"
    )
    files.add_argument(
        "--format",
        choices=("lines", "table", "conll", "squad", "swag"),
        help="default: seen from the name: .csv .tsv .jsonl .parquet, .conll .iob .bio, .json",
    )
    files.add_argument("--text", metavar="COLUMN", help="of a table (default: text)")
    files.add_argument("--text-pair", metavar="COLUMN", help="of the second text (default: none)")
    files.add_argument("--question", metavar="COLUMN", help="default: question")
    files.add_argument("--context", metavar="COLUMN", help="default: context")
    files.add_argument("--id", metavar="COLUMN", help="default: rows are counted")
    files.add_argument("--encoding", default="utf-8", help="of lines (default: utf-8)")
    files.add_argument(
        "--errors",
        choices=("strict", "replace", "ignore"),
        default="strict",
        help="what to do with bytes that are not text (default: strict)",
    )
    long_texts = parser.add_argument_group("long texts")
    long_texts.add_argument(
        "--long",
        choices=("head", "tail", "head+tail", "windows"),
        default="head",
        help="what is read of a text that is too long (default: head)",
    )
    long_texts.add_argument(
        "--pool", choices=("mean", "max", "first"), help="of the windows (default: mean)"
    )
    long_texts.add_argument(
        "--max-length", type=int, metavar="PIECES", help="of a row (default: as in training)"
    )
    long_texts.add_argument("--stride", type=int, metavar="PIECES", help="that two windows share")
    parser.add_argument(
        "--no-answer",
        action="store_true",
        default=None,
        help="questions may be left unanswered (default: as in training)",
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="ROWS", help="default: 32")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Writes one JSON line for each input, in their order."""
    from tqdm import tqdm

    from bert_jax.predict.predictor import Predictor
    from bert_jax.pretrained.load import load_model

    predictor = Predictor(
        load_model(args.model, args.task),
        truncation=args.long,
        window_pooling=args.pool,
        max_length=args.max_length,
        window_overlap=args.stride,
        batch_size=args.batch_size,
        allow_no_answer=args.no_answer,
    )
    groups, total = _grouped_inputs(args, predictor)
    # A bar and lines on one terminal would write over each other.
    disable_bar = None if args.output or not sys.stdout.isatty() else True
    with (
        _open_output(args.output) as stream,
        tqdm(desc="predicting", total=total, unit=" texts", disable=disable_bar) as bar,
    ):
        for group in groups:
            for prediction in predictor(group, on_progress=bar.update):
                stream.write(json.dumps(prediction, ensure_ascii=False) + "\n")
            stream.flush()
    if predictor.num_truncated:
        print(
            f"{predictor.num_truncated:,} of the inputs did not fit in {predictor.max_length} "
            "tokens and were not read whole; see --long and --max-length",
            file=sys.stderr,
        )


def _grouped_inputs(
    args: argparse.Namespace, predictor: "Predictor"
) -> tuple[Iterator[Sequence["Input"]], int | None]:
    """Inputs in groups, and their number where it is known."""
    from bert_jax.predict.files import group_arguments, parse_line, read_inputs
    from bert_jax.text.files import expand_globs

    kind = predictor.kind
    columns = {name: value for name in _COLUMNS if (value := getattr(args, name)) is not None}
    if args.pairs and kind in ("token_classification", "multiple_choice"):
        raise ConfigError(f"--pairs does not go with a model for {kind}")
    if args.texts and args.file:
        raise ConfigError("TEXT and --file are both given; expected one of them")
    if not args.file and (args.format or columns):
        raise ConfigError("--format and the names of columns go with --file, which is not given")
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
def _open_output(path: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears under its name when all of it is written."""
    if path is None:
        yield sys.stdout
        return
    try:
        with atomic_path(Path(path)) as tmp_path, tmp_path.open("w", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
