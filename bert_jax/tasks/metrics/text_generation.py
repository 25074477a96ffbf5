"""Computes metrics of generated texts: exact match, token F1, ROUGE, BLEU, chrF; and of labels.

ROUGE has the values of the package rouge-score without stemming; it is implemented here because
that package has no wheel. Its words are ASCII letters and digits, so ROUGE is 0 for texts in other
scripts; use chrF for them. BLEU and chrF are as in sacrebleu with its default tokenizer, 13a.
T5 reports other variants: BLEU with the tokenizer `intl`, and ROUGE-L over sentences (rougeLsum).
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.classification import classification_metrics
from bert_jax.tasks.metrics.regression import regression_metrics
from bert_jax.tasks.metrics.squad_metrics import squad2_scores
from bert_jax.tasks.metrics.validate_inputs import require_matching_counts

TEXT_METRICS = ("token_f1", "exact_match", "rouge1", "rouge2", "rougeL", "bleu", "chrf")
"""Names of the metrics of `text_metrics`; the first one is the main metric."""

_WORD = re.compile("[a-z0-9]+")


def text_metrics(
    references: Sequence[Sequence[str]], predictions: Sequence[str]
) -> dict[str, float]:
    """Computes metrics from 0 to 100; of several references, the best one counts.

    Returns:
      exact_match, token_f1   after the normalization of SQuAD
      rouge1, rouge2, rougeL   mean F1
      bleu, chrf              of the whole corpus

    Raises:
      UserError: there are no texts, or sacrebleu is not installed.
    """
    require_matching_counts("texts", len(references), len(predictions))
    scores = squad2_scores(references, predictions)
    result = {
        "exact_match": 100 * float(scores.exact.mean()),
        "token_f1": 100 * float(scores.f1.mean()),
    }
    return result | _rouge(references, predictions) | _bleu_and_chrf(references, predictions)


def require_text_metrics() -> None:
    """Raises UserError if sacrebleu is not installed."""
    if importlib.util.find_spec("sacrebleu") is None:
        raise UserError(
            "BLEU and chrF need the package sacrebleu; install it with "
            "`pip install 'bert_jax[generation]'`"
        )


# Written here (30 lines), because rouge-score has no wheel. T5 reports rougeLsum, and BLEU with the
# tokenizer `intl`.
def rouge_scores(reference: str, prediction: str) -> dict[str, float]:
    """Computes the F1 of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004) of one text, from 0 to 1."""
    words, predicted = (_WORD.findall(text.lower()) for text in (reference, prediction))
    scores: dict[str, float] = {}
    for n in (1, 2):
        counts = [
            Counter(zip(*(text[start:] for start in range(n)), strict=False))
            for text in (words, predicted)
        ]
        overlap = (counts[0] & counts[1]).total()
        scores[f"rouge{n}"] = _f1(overlap, counts[0].total(), counts[1].total())
    if not reference.strip() and not prediction.strip():
        # For a question without an answer the empty text is correct; rouge-score gives 0.
        return dict.fromkeys(("rouge1", "rouge2", "rougeL"), 1.0)
    common = _common_subsequence_length(words, predicted)
    scores["rougeL"] = _f1(common, len(words), len(predicted))
    return scores


def _f1(overlap: int, num_reference: int, num_predicted: int) -> float:
    return 2 * overlap / (num_reference + num_predicted) if overlap else 0.0


def _common_subsequence_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Returns the largest length of a sequence that is a subsequence of both."""
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for index, other in enumerate(second, 1):
            above = lengths[index]
            lengths[index] = diagonal + 1 if word == other else max(above, lengths[index - 1])
            diagonal = above
    return lengths[-1]


def _rouge(references: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    best: list[dict[str, float]] = []
    for texts, prediction in zip(references, predictions, strict=True):
        scores = [rouge_scores(text, prediction) for text in texts]
        best.append({name: max(score[name] for score in scores) for name in scores[0]})
    return {name: 100 * float(np.mean([score[name] for score in best])) for name in best[0]}


def _bleu_and_chrf(
    references: Sequence[Sequence[str]], predictions: Sequence[str]
) -> dict[str, float]:
    import sacrebleu

    # sacrebleu wants the first references of all texts, then the second ones; None is missing.
    count = max(map(len, references))
    columns: list[Any] = [
        [texts[index] if index < len(texts) else None for texts in references]
        for index in range(count)
    ]
    bleu = sacrebleu.corpus_bleu(list(predictions), columns)
    chrf = sacrebleu.corpus_chrf(list(predictions), columns)
    return {"bleu": bleu.score, "chrf": chrf.score}


def label_text_metrics(
    labels: Sequence[int], predictions: Sequence[int], class_names: Sequence[str]
) -> dict[str, float]:
    """Computes accuracy, F1 and Matthews correlation of classes that were written as texts.

    Args:
      predictions: class ids; -1 for a text that is no class, which is always wrong. For the F1 of
        class 1 of 2, T5 counts such a text as the class that is not the label.
    """
    label_ids, predicted = np.asarray(labels), np.asarray(predictions)
    num_classes = len(class_names)
    other = np.where(predicted < 0, num_classes, predicted)
    names = [*class_names, "other"]
    scores = classification_metrics(label_ids, np.eye(num_classes + 1)[other], names)
    result = {name: scores[name] for name in ("accuracy", "f1_macro", "matthews")}
    result["f1"] = result["f1_macro"]
    if num_classes == 2:
        logits = np.eye(2)[np.where(predicted < 0, 1 - label_ids, predicted)]
        result["f1"] = classification_metrics(label_ids, logits, class_names)["f1"]
    return result


def score_text_metrics(scores: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Computes Pearson and Spearman correlation of scores; a text that is no number is -1."""
    metrics = regression_metrics(np.asarray(scores), np.asarray(predictions))
    return {name: metrics[name] for name in ("pearson", "spearman")}
