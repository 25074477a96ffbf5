"""Compares models with different vocabularies on the same text: tokens, and masked-LM loss.

The loss of a token depends on the vocabulary, so the losses here are those of sentences, divided by
words between spaces and by bytes, which are the same for all models. The loss of a sentence is its
negative pseudo-log-likelihood, where a token is predicted without it and without the later tokens
of its word (Kauf and Ivanova 2023): the tokens of a word are factors of the probability of the
word. What remains is that a model reads how many tokens a masked word has, which is a hint if words
have several.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.apps.sentence_scores.scorer import SentenceScorer
from bert_jax.errors import UserError
from bert_jax.pretrained.load import LoadedModel, require_tokenizer
from bert_jax.report.text_table import format_table

_MAX_SCORED_TOKENS = 128
_TEXTS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class TextResult:
    """Holds what one model makes of a text.

    Attributes:
      vocab_size: number of tokens of the tokenizer.
      tokens, unknown_tokens: tokens of the whole text without special tokens, and unknown ones.
      loss: negative pseudo-log-likelihood of each scored sentence, in nats, float64; None for a
        model without masked-LM head.
    """

    vocab_size: int
    tokens: int
    unknown_tokens: int
    loss: np.ndarray | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Holds the results of several models on one text.

    Attributes:
      sentences, words, size: of the whole text; words are separated by spaces, `size` is in bytes
        of UTF-8.
      scored_words, scored_sizes: words and bytes of each sentence that the loss is measured on.
      results: name of the model -> its result.
    """

    sentences: int
    words: int
    size: int
    scored_words: np.ndarray
    scored_sizes: np.ndarray
    results: dict[str, TextResult]

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers of the table as a JSON object."""
        return {
            "text": {"sentences": self.sentences, "words": self.words, "bytes": self.size},
            "scored": {
                "sentences": len(self.scored_words),
                "words": int(self.scored_words.sum()),
                "bytes": int(self.scored_sizes.sum()),
            },
            "models": {name: self._numbers(result) for name, result in self.results.items()},
        }

    def _numbers(self, result: TextResult) -> dict[str, float | int | None]:
        nats_per_word = bits_per_byte = None
        if result.loss is not None:
            nats_per_word = float(result.loss.sum() / self.scored_words.sum())
            bits_per_byte = float(result.loss.sum() / self.scored_sizes.sum() / math.log(2))
        return {
            "vocab_size": result.vocab_size,
            "tokens": result.tokens,
            "tokens_per_word": result.tokens / self.words,
            "unknown_tokens": result.unknown_tokens,
            "nats_per_word": nats_per_word,
            "bits_per_byte": bits_per_byte,
        }

    def table(self) -> str:
        """Returns the numbers as lines with columns."""
        header = ("model", "vocabulary", "tokens", "per word", "unknown", "nats/word", "bits/byte")
        rows: list[list[str]] = []
        for name, numbers in self.as_json()["models"].items():
            losses = [numbers["nats_per_word"], numbers["bits_per_byte"]]
            rows.append(
                [
                    name,
                    f"{numbers['vocab_size']:,}",
                    f"{numbers['tokens']:,}",
                    f"{numbers['tokens_per_word']:.3f}",
                    f"{numbers['unknown_tokens']:,}",
                    *("-" if loss is None else f"{loss:.3f}" for loss in losses),
                ]
            )
        return format_table(header, rows)


def compare_models(
    models: Mapping[str, LoadedModel], sentences: Sequence[str], num_scored: int
) -> Comparison:
    """Counts the tokens of all sentences, and measures the loss on some of them.

    The scored sentences are spread evenly over those that have no unknown token and at most 128
    tokens for every model, so that all losses are of the same characters.

    Args:
      models: name -> model.
      num_scored: number of sentences that the loss is measured on; it takes one row of a batch for
        each of their tokens.

    Raises:
      UserError: there are no sentences, or none that can be scored.
    """
    if not sentences:
        raise UserError("the text for the comparison has no sentences; expected another --text")
    counts = {name: _count(model, sentences) for name, model in models.items()}
    can_be_scored = np.logical_and.reduce([fits for _, _, fits in counts.values()])
    candidates = np.flatnonzero(can_be_scored)
    if not len(candidates):
        raise UserError(
            "no sentence of the text has only known tokens and at most 128 of them; expected "
            "another --text"
        )
    evenly = np.linspace(0, len(candidates) - 1, min(num_scored, len(candidates)))
    chosen: list[int] = candidates[evenly.round().astype(int)].tolist()
    scored = [sentences[index] for index in chosen]
    results = {
        name: TextResult(
            vocab_size=require_tokenizer(model).vocab_size,
            tokens=counts[name][0],
            unknown_tokens=counts[name][1],
            loss=_losses(model, scored),
        )
        for name, model in models.items()
    }
    return Comparison(
        sentences=len(sentences),
        words=sum(len(text.split()) for text in sentences),
        size=sum(len(text.encode()) for text in sentences),
        scored_words=np.array([len(text.split()) for text in scored]),
        scored_sizes=np.array([len(text.encode()) for text in scored]),
        results=results,
    )


def _count(model: LoadedModel, sentences: Sequence[str]) -> tuple[int, int, np.ndarray]:
    """Returns the numbers of tokens and of unknown tokens, and whether each text can be scored."""
    tokenizer = require_tokenizer(model)
    longest = min(_MAX_SCORED_TOKENS, model.config.max_length)
    longest -= tokenizer.template.num_single_special_tokens
    tokens = unknown = 0
    fits: list[bool] = []
    for start in range(0, len(sentences), _TEXTS_AT_ONCE):
        for ids in tokenizer.encode_ids(sentences[start : start + _TEXTS_AT_ONCE]):
            is_unknown = ids == tokenizer.unk_id
            tokens, unknown = tokens + len(ids), unknown + int(is_unknown.sum())
            fits.append(0 < len(ids) <= longest and not is_unknown.any())
    return tokens, unknown, np.array(fits)


def _losses(model: LoadedModel, sentences: Sequence[str]) -> np.ndarray | None:
    if "masked_lm" not in model.params:
        return None
    scores = SentenceScorer(model, masking="within_word_l2r")(list(sentences))
    return -np.array([score.log_probability for score in scores])
