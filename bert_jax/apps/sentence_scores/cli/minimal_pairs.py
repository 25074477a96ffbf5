"""Runs `bert-jax minimal-pairs`: accuracy of a model on BLiMP and other minimal pairs."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.apps.sentence_scores.cli.score import MaskingArguments
from bert_jax.cli.arguments import ModelArguments
from bert_jax.config.flags import flag, positional, switch
from bert_jax.errors import ConfigError, UserError, check_range

if TYPE_CHECKING:
    from bert_jax.apps.sentence_scores.minimal_pairs import Accuracy, MinimalPair

logger = logging.getLogger(__name__)

HELP = "measure how often a model prefers the acceptable sentence of a pair, as in BLiMP"

EPILOG = """examples:
  bert-jax minimal-pairs exported 'blimp/data/*.jsonl' --output runs/blimp.json
  bert-jax minimal-pairs exported pairs.csv --good grammatical --bad ungrammatical --group rule
  bert-jax minimal-pairs runs/novels 'blimp/data/*.jsonl' --limit 50 --every-checkpoint

BLiMP: git clone https://github.com/alexwarstadt/blimp. Its published accuracies of a 5-gram, an
LSTM, Transformer-XL and GPT-2 are added by
  --published blimp/raw_results/summary/models_summary.jsonl

Prints the accuracy of each group, with a 95 % interval over its pairs; a group is a mean over its
files, as in BLiMP. --output also has each file.

--every-checkpoint writes the accuracy of each checkpoint that a run keeps to minimal_pairs.json in
its folder, and the curve to its report. Repeated, also while the run is training, it scores the new
ones only. A run keeps its newest three: --set train.checkpoints.keep_last=20 keeps more.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(ModelArguments, MaskingArguments):
    """Names the model, the pairs and their columns."""

    files: tuple[str, ...] = positional(
        "FILE", "table (CSV, TSV, JSON lines, Parquet) or glob pattern of tables"
    )
    good: str = flag("COLUMN", "column of the acceptable sentences", "sentence_good")
    bad: str = flag("COLUMN", "column of the unacceptable sentences", "sentence_bad")
    group: str | None = flag(
        "COLUMN",
        "column that names the phenomenon (default: linguistics_term if there is one, as in BLiMP)",
    )
    limit: int | None = flag("N", "first pairs of each file to score (default: all)")
    published: str | None = flag(
        "FILE", "accuracies of other systems for each file of BLiMP, in the format of its summary"
    )
    output: str | None = flag("FILE", "JSON file with all results")
    every_checkpoint: bool = switch("curve over the checkpoints of a run, in its report")

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_range("--limit", self.limit, at_least=1)
        if self.every_checkpoint and (self.output or self.published):
            raise ConfigError(
                "--every-checkpoint writes minimal_pairs.json and the report into the run folder; "
                "remove --output and --published"
            )


def run(args: Arguments) -> None:
    """Scores all pairs and prints a table of accuracies."""
    from tqdm import tqdm

    from bert_jax.apps.sentence_scores.minimal_pairs import (
        ALL,
        PairColumns,
        accuracies,
        read_pairs,
        read_published,
        score_pairs,
        to_json,
    )
    from bert_jax.apps.sentence_scores.scorer import SentenceScorer
    from bert_jax.io.atomic_io import write_json
    from bert_jax.pretrained.load import load_model
    from bert_jax.report.text_table import format_table
    from bert_jax.text.files import expand_globs

    if args.output is not None and not Path(args.output).parent.is_dir():
        raise UserError(f"--output {args.output}: there is no folder {Path(args.output).parent}")
    columns = PairColumns(args.good, args.bad, args.group)
    pairs = read_pairs(expand_globs(args.files), columns, limit=args.limit)
    if args.every_checkpoint:
        _score_checkpoints(args, pairs)
        return
    published = {} if args.published is None else read_published(args.published, pairs)
    scorer = SentenceScorer(load_model(args.model), masking=args.masking)
    with tqdm(desc="scoring", total=len(pairs), unit=" pairs", disable=None) as bar:
        scores = score_pairs(scorer, pairs, lambda done: bar.update(done - bar.n))
    found = accuracies(scores)
    rows = {**dict(sorted(found["groups"].items())), ALL: found[ALL][ALL]}
    header = ["", "accuracy", "95 % interval", "pairs", *published]
    cells = [
        [name, *_cells(accuracy), *(f"{100 * values[name]:.1f}" for values in published.values())]
        for name, accuracy in rows.items()
    ]
    print(format_table(header, cells), flush=True)
    if unequal := scores.num_unequal():
        logger.info(
            "note: in %s of %s pairs, the sentences have different numbers of tokens; the sum of "
            "log-probabilities favors the shorter one",
            f"{unequal:,}",
            f"{len(pairs):,}",
        )
    if args.output is not None:
        write_json(
            Path(args.output),
            {
                "model": args.model,
                "masking": args.masking,
                **to_json(found, scores),
                "published": published,
            },
        )


def _score_checkpoints(args: Arguments, pairs: "list[MinimalPair]") -> None:
    """Prints a row for each checkpoint of the run."""
    from bert_jax.apps.sentence_scores.checkpoints import score_checkpoints
    from bert_jax.report.text_table import format_table

    rows = score_checkpoints(
        Path(args.model),
        pairs,
        masking=args.masking,
        on_checkpoint=lambda row: logger.info(
            "step %s: %.1f %%", f"{row['step']:,}", 100 * row["all"]
        ),
    )
    names = [name for name in rows[-1] if name != "step"]
    cells = [[f"{row['step']:,}", *(f"{100 * row[name]:.1f}" for name in names)] for row in rows]
    print(format_table(["step", *names], cells), flush=True)


def _cells(accuracy: "Accuracy") -> list[str]:
    value, low, high = (f"{100 * number:.1f}" for number in accuracy[:3])
    return [value, f"{low} to {high}", f"{accuracy.pairs:,}"]
