"""The shared GLUE files under their official names."""

from pathlib import Path

import pytest

RENAMED = {
    "MNLI/dev_matched.rebuilt.tsv.gz": "MNLI/dev_matched.tsv.gz",
    "QQP/dev_cs224n.rebuilt.tsv.gz": "QQP/dev.tsv.gz",
}


@pytest.fixture(scope="session")
def glue(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links: CoLA/train.tsv and so on."""
    folder = tmp_path_factory.mktemp("glue")
    for file in sorted((shared / "glue").glob("*/*.tsv*")):
        name = file.relative_to(shared / "glue").as_posix()
        link = folder / RENAMED.get(name, name)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(file)
    return folder
