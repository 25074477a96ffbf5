"""Runs `bert-jax curate-ngrams`: trains an n-gram model, whose perplexity rules of curation use."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, flag
from bert_jax.text.files import DocumentUnit

HELP = "train an n-gram model of a reference corpus, for perplexity rules of `curate`"

EPILOG = """example: drop documents that are more surprising than 99 % of such books
  bert-jax curate-ngrams --reference 'books/*.txt' --output books.safetensors

A recipe then has Rule(signal=PerplexityPercentile(model="books.safetensors"), at_most=99), or
Perplexity with a limit from the table that is printed.
"""
_SHOWN_PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the reference text, the model file, and the length of n-grams."""

    reference: tuple[str, ...] = flag(
        "FILES", "files or glob patterns of the reference text", REQUIRED
    )
    document_unit: DocumentUnit = flag("", "what a document is in a text file", "blank-line")
    order: int = flag("N", "words in an n-gram", 3)
    output: Path = flag("FILE", "model file", REQUIRED)


def run(args: Arguments) -> None:
    """Trains, writes the model, and prints the perplexity of held-out documents."""
    from bert_jax.apps.curate.ngrams import train_ngrams
    from bert_jax.data.corpus.sources import TextFiles
    from bert_jax.text.cleaning import normalize_text

    source = TextFiles(args.reference, document_unit=args.document_unit)
    model = train_ngrams(map(normalize_text, source.read_texts(source.list_files())), args.order)
    model.save(args.output)
    sizes = ", ".join(f"{len(level.keys):,}" for level in model.levels)
    print(
        f"{args.output}: {model.info['words']:,} words of {model.info['documents']:,} documents; "
        f"{sizes} n-grams of 1 to {args.order} words"
    )
    print(
        f"perplexity of {model.info['held_out_documents']:,} other documents: "
        + ", ".join(f"{p} %: {model.info['percentiles'][p]:,.1f}" for p in _SHOWN_PERCENTILES)
    )
