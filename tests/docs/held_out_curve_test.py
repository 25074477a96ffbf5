"""Covers docs/held_out_curve.py and docs/novels.svg."""

from pathlib import Path

from docs import held_out_curve

DOCS = Path(__file__).parents[2] / "docs"


def test_picture_of_the_novels_shows_the_saved_losses(tmp_path: Path):
    losses = [str(DOCS / "novels_metrics.jsonl"), "--bigram", "5.013", "--unigram", "6.462"]
    held_out_curve.main([*losses, "--output", str(tmp_path / "novels.svg")])
    assert (tmp_path / "novels.svg").read_text() == (DOCS / "novels.svg").read_text()
