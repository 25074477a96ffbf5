"""Covers docs/held_out_curve.py and the pictures that it draws in docs/."""

from pathlib import Path

import pytest

from docs import held_out_curve

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("picture", "metrics"),
    [
        ("novels.svg", {"BERT": "novels_metrics.jsonl"}),
        (
            "two_recipes.svg",
            {"BERT": "bert_metrics.jsonl", "ModernBERT": "modernbert_metrics.jsonl"},
        ),
    ],
)
def test_pictures_show_the_saved_losses(picture, metrics, tmp_path: Path):
    runs = [f"{name}={DOCS / file}" for name, file in metrics.items()]
    baselines = ["--bigram", "5.013", "--unigram", "6.462"]
    held_out_curve.main([*runs, *baselines, "--output", str(tmp_path / picture)])
    assert (tmp_path / picture).read_text() == (DOCS / picture).read_text()
