"""Finds texts in the input of `bert-jax curate`, and what its ledger says about their documents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.apps.curate.corpus import digest
from bert_jax.apps.curate.curate import LEDGER
from bert_jax.apps.curate.ledger import RETAINED, LedgerRow, read_ledger
from bert_jax.data.corpus.source_files import local_file
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CuratedDocument:
    """Describes a document of the input that contains a text.

    Attributes:
      file: the file of the input, with the number of the document in it.
      row: what the ledger says; None: the document is not in the ledger.
    """

    file: str
    row: LedgerRow | None

    def __str__(self) -> str:
        if self.row is None:
            return f"{self.file}: not in the ledger"
        if self.row.reason == RETAINED:
            size = f"{self.row.retained_characters:,} of {self.row.characters:,} characters"
            return f"{self.row.id}: kept, {size}"
        value = "" if self.row.value is None else f" ({self.row.value:.3g})"
        twin = f", see {self.row.twin}" if self.row.twin else ""
        return f"{self.row.id}: removed by {self.row.reason}{value}{twin}"


def find_in_input(
    texts: Sequence[str], curated: Path, raw: TextFiles
) -> list[list[CuratedDocument]]:
    """Finds the documents of the input that contain each text, apart from case and spaces.

    Args:
      curated: the output of `bert-jax curate`.
      raw: files of its input, read as the recipe reads them.

    Raises:
      UserError: there is no ledger, or a file cannot be read.
    """
    ledgers = sorted(curated.glob(LEDGER.format("*")))
    if not ledgers:
        raise UserError(
            f"{curated}: has no ledger ({LEDGER.format('*')}); expected the output of "
            "`bert-jax curate`"
        )
    wanted = [_normalize(text) for text in texts]
    matches: list[list[tuple[str, str]]] = [[] for _ in texts]
    for name, text in _documents(raw):
        normalized = _normalize(text)
        for index, each in enumerate(wanted):
            if each in normalized:
                matches[index].append((name, digest(text)))
    digests = {key for found in matches for _, key in found}
    rows = {row.digest: row for row in read_ledger(ledgers) if row.digest in digests}
    return [[CuratedDocument(file=n, row=rows.get(key)) for n, key in found] for found in matches]


def _documents(raw: TextFiles) -> Iterator[tuple[str, str]]:
    for file in raw.list_files():
        with local_file(file) as local:
            for document in raw.read_file(local):
                yield f"{file.path}:{document.key}", document.text


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split())
