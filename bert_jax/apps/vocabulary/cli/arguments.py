"""Defines the flags that the verbs of `bert-jax vocabulary` share, and writes their result."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.config.flags import REQUIRED, check_needs, flag, switch
from bert_jax.errors import check_range

if TYPE_CHECKING:
    from bert_jax.apps.vocabulary.change import ChangedModel

logger = logging.getLogger(__name__)

REPORT = "vocabulary_change.json"
DEFAULT_SENTENCES = 200

CHANGE_HELP = f"""\
MODEL is a run, an export, another Hugging Face folder of an encoder, or a folder of
sentence-transformers. FOLDER has the same format, and transformers opens it. {REPORT} in it says
how the rows were made; with --text, also the tokens and the masked-LM loss before and after: per
word between spaces and per byte, so that vocabularies can be compared.

To continue pretraining: bert-jax prepare --tokenizer FOLDER, bert-jax pretrain --init-from FOLDER.
"""


@dataclass(frozen=True, kw_only=True)
class SentenceArguments:
    """Says on how many sentences a loss is measured."""

    sentences: int | None = flag(
        "N",
        f"sentences of --text that the loss is measured on (default: {DEFAULT_SENTENCES})",
    )

    def __post_init__(self) -> None:
        check_range("--sentences", self.num_scored, at_least=1)

    @property
    def num_scored(self) -> int:
        """Returns --sentences or its default."""
        return DEFAULT_SENTENCES if self.sentences is None else self.sentences


@dataclass(frozen=True, kw_only=True)
class ChangeArguments(SentenceArguments):
    """Names the new folder, and the text of the report."""

    text: tuple[str, ...] = flag(
        "FILE", "text or .jsonl files on which tokens and loss are compared with MODEL", ()
    )
    random_rows: bool = switch(
        "random rows for new tokens, a baseline: the mean and deviation of the old rows"
    )
    output: str = flag("FOLDER", "new folder to write", REQUIRED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_needs(self, "text", "sentences")


def write_and_report(change: "ChangedModel", args: ChangeArguments) -> None:
    """Writes the changed model and its report, and prints the report."""
    from bert_jax.apps.vocabulary.change import write_changed
    from bert_jax.apps.vocabulary.compare import compare_models
    from bert_jax.apps.word_vectors.sentences import read_texts
    from bert_jax.io.atomic_io import write_json

    # Before the folder is written, so that a mistake in the text leaves none.
    models = {"before": change.before, "after": change.after}
    comparison = None
    if args.text:
        comparison = compare_models(models, list(read_texts(args.text)), args.num_scored)
    output = Path(args.output)
    write_changed(change, output)
    report = {"random_rows": args.random_rows, "rows": change.rows.counts}
    if comparison is not None:
        report |= {"files": list(args.text), **comparison.as_json()}
        print(comparison.table())
        if comparison.results["after"].loss is None:
            logger.warning("there is no loss, because the model has no masked-LM head")
    write_json(output / REPORT, report)
    kinds = ", ".join(f"{number:,} {name}" for name, number in change.rows.counts.items())
    logger.info("%s: %s tokens (rows: %s)", output, f"{change.after.config.vocab_size:,}", kinds)
