"""Runs `bert-jax seen`: where a text is in the corpus of a run, and when it was read."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.config.flags import check_needs, flag, given, positional
from bert_jax.data.corpus.prepare_flags import READING_FLAGS, ReadingArguments
from bert_jax.errors import ConfigError, check_range

if TYPE_CHECKING:
    from bert_jax.apps.seen.find_texts import FoundPassage, TextFinder
    from bert_jax.apps.seen.removed_texts import CuratedDocument

HELP = "find a text in the corpus of a pretraining run, and the updates that read it"

EPILOG = """examples:
  bert-jax seen runs/novels "It was the best of times"
  bert-jax seen runs/novels/checkpoints/2000 "It was the best of times" --documents found.tsv
  bert-jax seen runs/web "the text" --curated curated --raw 'crawl/*.jsonl.gz'

For each passage with the same tokens, or similar ones, it prints the document and each example that
contained tokens of it: the update, the epoch, and the tokens, with brackets around those that were
masked or replaced, and predicted. Nothing is recorded for this during training: the order of a run
is computed again from its config and corpora, which must be as they were.

Updates after the last checkpoint, or after the one named, are not counted, nor is what was read by
the model from which the run started (--init-from).

An index of about 4 bytes per token is written once into the folder of each prepared corpus. Other
passages are found if their similarity is at least --similarity, and one of the groups of 4 tokens
into which the corpus is divided is unchanged in them.

With --curated and --raw, it also finds the text in the raw documents, and prints which rule of the
curation removed them.
"""

SHOWN_PASSAGES, SHOWN_READINGS = 10, 5
COMMON = ("similarity", "documents", "output")


@dataclass(frozen=True, kw_only=True)
class Arguments(ReadingArguments):
    """Names the run and the texts."""

    run_path: str = positional("RUN", "pretraining run, or one of its checkpoints")
    texts: tuple[str, ...] = positional("TEXT", "text to find, a sentence or a part of one")
    similarity: float = flag(
        "S", "smallest similarity of passages that differ; 1: equal tokens only", 0.8
    )
    documents: str | None = flag(
        "FILE", "list of the documents that contain the texts, for `bert-jax unlearn`"
    )
    output: str | None = flag("FILE", "JSON file with all passages and readings")
    index: str | None = flag(
        "FOLDER", "folder of the indexes (default: the folder of each prepared corpus)"
    )
    curated: str | None = flag("FOLDER", "output of `bert-jax curate`, with its ledger")
    raw: tuple[str, ...] = flag("GLOB", "text or .jsonl files that were curated", ())

    def __post_init__(self) -> None:
        check_range("--similarity", self.similarity, above=0, at_most=1)
        check_needs(self, "raw", *READING_FLAGS)
        if bool(self.curated) != bool(self.raw):
            raise ConfigError("--curated and --raw belong together; give both, or neither")


def run(args: Arguments) -> None:
    """Prints what was found, and writes the files."""
    from bert_jax.apps.seen.find_texts import TextFinder
    from bert_jax.apps.seen.removed_texts import find_in_input
    from bert_jax.data.corpus.document_list import write_document_list
    from bert_jax.data.corpus.sources import TextFiles
    from bert_jax.io.atomic_io import check_writable, write_json

    for name, path in (("--output", args.output), ("--documents", args.documents)):
        if path is not None:
            check_writable(Path(path), name)
    finder = TextFinder(args.run_path, index=args.index)
    found = finder.find(args.texts, args.similarity)
    raw = [[] for _ in args.texts]
    if args.curated:
        source = TextFiles({"train": args.raw}, **given(args, *READING_FLAGS))
        raw = find_in_input(args.texts, Path(args.curated), source)
    for text, passages, documents in zip(args.texts, found, raw, strict=True):
        _print_text(text, passages, documents, finder, has_input=bool(args.curated))
    listed = [(each.corpus, each.document) for passages in found for each in passages]
    if args.documents and listed:
        write_document_list(Path(args.documents), listed)
        run_name, file = shlex.quote(str(finder.history.folder)), shlex.quote(args.documents)
        print(f"next: bert-jax unlearn {run_name} --documents {file} --output NEW_RUN")
    if args.output:
        result = [
            {"text": text, "passages": [dataclasses.asdict(each) for each in passages]}
            for text, passages in zip(args.texts, found, strict=True)
        ]
        content = {"run": str(finder.history.folder), "step": finder.history.step, "texts": result}
        write_json(Path(args.output), content)


def _print_text(
    text: str,
    passages: "list[FoundPassage]",
    documents: "list[CuratedDocument]",
    finder: "TextFinder",
    *,
    has_input: bool,
) -> None:
    read = [each for each in passages if each.readings]
    unread = [each for each in passages if not each.readings]
    if not passages:
        print(f"{text!r}: not in the corpus")
    else:
        found = f"{len(passages):,} passages" if len(passages) > 1 else "1 passage"
        print(f"{text!r}: {found}, {len(read):,} read in {finder.history.step:,} updates")
    for passage in (read + unread)[:SHOWN_PASSAGES]:
        kind = "the same tokens" if passage.similarity == 1 else f"similar {passage.similarity:.2f}"
        print(f"  {passage.corpus}, document {passage.document} ({kind}): {passage.text}")
        if passage.readings:
            first = passage.readings[0].update
            print(f"    read {len(passage.readings):,} times, first by update {first:,}")
        for reading in passage.readings[:SHOWN_READINGS]:
            shown = finder.show_reading(passage, reading)
            print(f"      update {reading.update:,}, epoch {reading.epoch + 1}: {shown}")
        if len(passage.readings) > SHOWN_READINGS:
            print(f"      and {len(passage.readings) - SHOWN_READINGS:,} more (--output has all)")
    if len(passages) > SHOWN_PASSAGES:
        print(f"  and {len(passages) - SHOWN_PASSAGES:,} more passages (--output has all)")
    for document in documents:
        print(f"  in the input, {document}")
    if has_input and not documents:
        print("  not in the input files")
