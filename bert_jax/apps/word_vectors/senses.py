"""Compares the vectors of one word in several sentences: static vectors have one for all senses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.apps.word_vectors.sentences import split_words
from bert_jax.apps.word_vectors.word_encoder import WordEncoder
from bert_jax.errors import UserError
from bert_jax.report.html import card, escape, html_page, table


def compare_senses(encoder: WordEncoder, word: str, sentences: Sequence[str]) -> dict[str, Any]:
    """Computes the cosines between the occurrences of a word.

    Args:
      word: the word in lower case; its first occurrence in a sentence counts.
      sentences: at least two sentences with the word.

    Returns:
      {"word", "sentences", "layers": {layer: {"cosines": matrix as nested lists, "nearest": for
      each sentence the number of the one whose occurrence is nearest, from 0}}}.

    Raises:
      UserError: there are fewer than two sentences, or one lacks the word or its vector.
    """
    if len(sentences) < 2:
        raise UserError(f"{len(sentences)} sentence with {word!r}; expected at least two")
    occurrences: list[np.ndarray] = []
    for sentence, vectors in zip(sentences, encoder.embed(sentences), strict=True):
        words = split_words(sentence)
        if word not in words:
            raise UserError(
                f"the sentence {sentence!r} does not have the word {word!r}; its words are "
                f"{', '.join(words[:12])}"
            )
        vector = vectors[words.index(word)]
        if not vector.any():
            raise UserError(f"there is no vector of {word!r} in the sentence {sentence!r}")
        occurrences.append(vector)
    layers: dict[str, Any] = {}
    for layer, name in enumerate(encoder.layer_names):
        rows = np.stack([vector[layer] for vector in occurrences]).astype(np.float64)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = unit @ unit.T
        others = cosines - 3.0 * np.eye(len(rows))
        layers[name] = {"cosines": cosines.tolist(), "nearest": others.argmax(axis=1).tolist()}
    return {"word": word, "sentences": list(sentences), "layers": layers}


def senses_page(comparisons: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns an HTML page with the cosines of each layer of each model.

    Args:
      comparisons: model -> result of `compare_senses`, all of the same word and sentences.
    """
    first = next(iter(comparisons.values()))
    title = f"Occurrences of “{first['word']}”"
    lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in first["sentences"])
    numbers = [str(number) for number in range(1, len(first["sentences"]) + 1)]
    cards = [card(f"<ol>{lines}</ol>", title="Sentences")]
    for model, comparison in comparisons.items():
        tables = [
            table(
                ["sentence", *numbers, "nearest"],
                [
                    [number, *(f"{cosine:.2f}" for cosine in row), str(nearest + 1)]
                    for number, row, nearest in zip(
                        numbers, layer["cosines"], layer["nearest"], strict=True
                    )
                ],
                caption=name,
            )
            for name, layer in comparison["layers"].items()
        ]
        cards.append(card("".join(tables), title=model))
    return html_page(title, f"<h1>{escape(title)}</h1>{''.join(cards)}")
