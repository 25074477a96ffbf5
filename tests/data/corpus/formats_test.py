"""Covers bert_jax/data/corpus/formats/: documents of raw files, and files that are damaged."""

from pathlib import Path

import pytest

from bert_jax.data.corpus.curation.curate import curate
from bert_jax.data.corpus.curation.plan import CurationConfig, DocumentFiles, Source
from bert_jax.data.corpus.formats.parquet import ParquetFiles
from bert_jax.data.corpus.sources import SourceFile
from bert_jax.errors import UserError

pyarrow = pytest.importorskip("pyarrow")


def curated(files: DocumentFiles, folder: Path) -> dict:
    """Returns the manifest of curating one source, called "raw"."""
    config = CurationConfig(sources=(Source(name="raw", files=files),), max_dropped=1)
    return curate(config, folder / "curated", num_workers=1)


def test_rows_of_parquet_files_are_documents(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = pyarrow.table({"content": ["One row.", None, "Another row."], "stars": [1, 2, 3]})
    parquet.write_table(table, path)
    manifest = curated(ParquetFiles(str(path), column="content"), tmp_path)
    assert manifest["counts"]["retained_documents"] == 2
    assert manifest["counts"]["dropped"] == {"raw": {"empty": 1}}
    with pytest.raises(UserError, match="no column 'contents'; did you mean 'content'"):
        list(ParquetFiles(str(path), column="contents").read_file(SourceFile.from_path(str(path))))
    with pytest.raises(UserError, match="column 'stars' has type int64, expected string"):
        list(ParquetFiles(str(path), column="stars").read_file(SourceFile.from_path(str(path))))
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"a\.parquet: not a Parquet file, or damaged"):
        list(ParquetFiles(str(path)).read_file(SourceFile.from_path(str(path))))
