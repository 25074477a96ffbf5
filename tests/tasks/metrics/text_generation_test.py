"""Covers bert_jax/tasks/metrics/text_generation.py."""

import numpy as np
import pytest

from bert_jax.tasks.metrics.text_generation import (
    label_text_metrics,
    rouge_scores,
    score_text_metrics,
    text_metrics,
)

pytest.importorskip("sacrebleu")


def test_metrics_of_texts() -> None:
    references = [["The cat sat on the mat."], ["A dog barked loudly at night.", "A dog barked."]]
    same = text_metrics(references, [references[0][0], references[1][1]])
    assert same["exact_match"] == same["token_f1"] == same["rouge1"] == 100
    assert same["bleu"] > 60 and same["chrf"] > 60
    other = text_metrics(references, ["A cat sat.", "Nothing."])
    assert other["exact_match"] == 0 and 30 < other["token_f1"] < 40
    # "cat", "sat": 2 of 3 and of 6 words.
    assert other["rouge1"] == pytest.approx(100 * (2 * 2 / 9) / 2)
    with pytest.raises(ValueError, match="do not pair up"):
        text_metrics(references, ["one"])


def test_outputs_that_are_no_label_are_wrong() -> None:
    scores = label_text_metrics([1, 1, 0, 0], [1, -1, 0, -1], ["no", "yes"])
    assert scores["accuracy"] == 0.5
    # T5 counts an invalid text as the other class: a false negative and a false positive.
    assert scores["f1"] == pytest.approx(1 / 2)
    assert label_text_metrics([0, 1], [0, 1], ["no", "yes"])["matthews"] == 1.0


def test_scores_of_texts() -> None:
    metrics = score_text_metrics([0.0, 1.0, 5.0], [0.2, 1.2, 5.0])
    assert metrics["pearson"] > 0.99 and metrics["spearman"] == pytest.approx(1.0)
    assert np.isfinite(score_text_metrics([0.0, 1.0], [-1.0, -1.0])["pearson"])


def test_rouge_has_the_values_of_the_original_package() -> None:
    # Computed with rouge-score 0.1.2, without stemming.
    reference = "The quick brown fox jumps over the lazy dog, and the dog sleeps."
    prediction = "The brown dog jumps over a lazy fox while the quick dog sleeps!"
    assert rouge_scores(reference, prediction) == pytest.approx(
        {"rouge1": 22 / 26, "rouge2": 6 / 24, "rougeL": 16 / 26}
    )
    assert set(rouge_scores("a", "").values()) == {0.0}
    assert set(rouge_scores("", "a").values()) == {0.0}


def test_empty_output_for_an_empty_reference_is_correct() -> None:
    metrics = text_metrics([[""], ["a dog"]], ["", "a dog"])
    names = ("exact_match", "token_f1", "rouge1", "rouge2", "rougeL")
    assert [metrics[name] for name in names] == [100] * 5
