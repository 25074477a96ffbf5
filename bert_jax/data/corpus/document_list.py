"""Reads and writes lists of documents of prepared corpora, one document on each line.

    CORPUS <tab> NUMBER

CORPUS is the folder of the prepared corpus, and NUMBER counts its documents from 0, as `bert-jax
seen` does. Empty lines, and lines that begin with "#", are ignored.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write


def write_document_list(path: Path, documents: Iterable[tuple[str, int]]) -> None:
    """Writes (folder of the corpus, number of the document), each once, in ascending order."""
    lines = "".join(f"{corpus}\t{number}\n" for corpus, number in sorted(set(documents)))
    atomic_write(path, lines)


def read_lines(path: str | Path) -> list[str]:
    """Reads the lines of a list of documents; raises a UserError if that is not possible."""
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); expected a list of documents, such as "
            "`bert-jax seen RUN TEXT --documents FILE` writes"
        ) from None


def read_document_list(path: str | Path, corpora: Sequence[PreparedCorpus]) -> np.ndarray:
    """Reads which documents are listed, [D] bool, numbered over all corpora.

    Raises:
      UserError: the file cannot be read, a line is malformed, or there is no such document.
    """
    first, folders = 0, {}
    for corpus in corpora:
        folders[corpus.folder.resolve()] = (first, corpus.num_documents)
        first += corpus.num_documents
    listed = np.zeros(first, bool)
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        corpus, _, document = line.rpartition("\t")
        if not corpus or not document.strip().isdecimal():
            raise UserError(
                f"{path}:{number}: found {line!r}; expected the folder of a prepared corpus, a "
                "tab and the number of a document"
            )
        if Path(corpus).resolve() not in folders:
            known = ", ".join(str(each.folder) for each in corpora)
            raise UserError(
                f"{path}:{number}: {corpus} is not a corpus of this run; expected {known} "
                "(relative paths begin at the current folder)"
            )
        start, count = folders[Path(corpus).resolve()]
        if int(document) >= count:
            raise UserError(
                f"{path}:{number}: {corpus} has no document {document}; its documents are "
                f"numbered 0 to {count - 1:,}"
            )
        listed[start + int(document)] = True
    if not listed.any():
        raise UserError(f"{path}: lists no documents; expected at least one")
    return listed
