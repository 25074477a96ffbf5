"""Finds the attention head that predicts a dependency relation best (Clark et al. 2019, section 4).

A head predicts for each word the word with the largest attention weight. It is compared with the
best fixed offset, such as "the next word".
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.apps.treebanks.conllu import TreebankSentence
from bert_jax.apps.treebanks.word_features import fitting_sentences, tokenize_sentences
from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.predict.attention import attention_parts, attention_weights
from bert_jax.predict.batches import padded_batches, params_to_device
from bert_jax.pretrained.load import LoadedModel, require_no_adapter, require_tokenizer

Direction = Literal["dependent to head", "head to dependent"]
"""Whose attention predicts: the word with the largest weight of the dependent's attention, or the
word that attends to the dependent with the largest weight."""
DIRECTIONS: tuple[Direction, ...] = ("dependent to head", "head to dependent")
ALL = "all"
_MAX_OFFSET = 10
_OFFSETS = tuple(offset for offset in range(-_MAX_OFFSET, _MAX_OFFSET + 1) if offset)


class Relation(NamedTuple):
    """Holds how well a relation is predicted.

    Head and offset are chosen on every other sentence of the treebank, and the accuracies are
    those on the other half: the best of some hundred heads is too good where it is chosen.

    Attributes:
      name: the relation without its subtype, such as "nsubj"; "all" for all relations.
      words: number of words with this relation in the half where accuracies are measured.
      layer, head: the best head; layers count from 1, heads from 0.
      direction: how it is read.
      accuracy: the fraction of words whose head it predicts.
      offset: the best fixed offset: positive where the head follows.
      offset_accuracy: its accuracy.
    """

    name: str
    words: int
    layer: int
    head: int
    direction: Direction
    accuracy: float
    offset: int
    offset_accuracy: float


class _Counts(NamedTuple):
    """Counts correct predictions in the half that chooses, and in the other: [2, ...]."""

    words: np.ndarray  # [2]
    heads: np.ndarray  # [2, directions, N, H]
    offsets: np.ndarray  # [2, offsets]


def best_heads(
    model: LoadedModel,
    sentences: Sequence[TreebankSentence],
    *,
    on_progress: Callable[[int], object] = lambda num_sentences: None,
) -> list[Relation]:
    """Finds the best head and the best fixed offset for each relation, most frequent first.

    As in the paper, the attention to a word is the sum over its tokens, and the attention of a word
    the mean over its tokens; special tokens and the word itself are not predicted. Sentences that
    are longer than the model reads are left out.

    Raises:
      UserError: no relation is in both halves of the treebank, or the model has no tokenizer or an
        adapter.
    """
    require_no_adapter(model, "show attention weights")
    tokenizer = require_tokenizer(model)
    fitting = fitting_sentences(model, [sentence.words for sentence in sentences])
    chosen = [sentences[index] for index in fitting]
    sequences, counts = tokenize_sentences([sentence.words for sentence in chosen], tokenizer)
    num_prefix_tokens = tokenizer.build_inputs_with_special_tokens([-1]).tolist().index(-1)
    params = params_to_device(model, attention_parts(model))
    compute = jax.jit(functools.partial(_predicted_words, model.config, model.head))
    shape = (len(DIRECTIONS), model.config.num_applied_layers, model.config.num_attention_heads)
    found: dict[str, _Counts] = {}
    for indices, batch in padded_batches(
        sequences, pad_id=tokenizer.pad_id, max_length=model.config.max_length
    ):
        # The word of each token; -1 for special tokens and padding.
        words = np.full(batch["input_ids"].shape, -1, np.int32)
        for row, index in enumerate(indices):
            of_tokens = np.repeat(np.arange(len(counts[index])), counts[index])
            words[row, num_prefix_tokens : num_prefix_tokens + len(of_tokens)] = of_tokens
        predicted = np.asarray(compute(params, batch, words))
        for row, index in enumerate(indices):
            _count(found, shape, chosen[index], predicted[row], index % 2)
        on_progress(len(indices))
    relations = [_best(name, counted) for name, counted in found.items() if counted.words.all()]
    if not relations:
        raise UserError(
            f"no relation is in both halves of the {len(chosen)} sentences; expected a treebank of "
            "some dozens of sentences"
        )
    return sorted(relations, key=lambda relation: -relation.words)


def _count(
    found: dict[str, _Counts],
    shape: tuple[int, ...],
    sentence: TreebankSentence,
    predicted: np.ndarray,
    half: int,
) -> None:
    """Adds the words of a sentence; `predicted` is int [directions, N, H, L]."""
    for word, (head, deprel) in enumerate(zip(sentence.heads, sentence.deprels, strict=True)):
        if head < 0:
            continue
        for name in (deprel.split(":")[0], ALL):
            if name not in found:
                offsets = np.zeros((2, len(_OFFSETS)), np.int64)
                found[name] = _Counts(
                    np.zeros(2, np.int64), np.zeros((2, *shape), np.int64), offsets
                )
            counts = found[name]
            counts.words[half] += 1
            counts.heads[half] += predicted[..., word] == head
            counts.offsets[half] += np.array(_OFFSETS) == head - word


def _best(name: str, counts: _Counts) -> Relation:
    direction, layer, head = np.unravel_index(counts.heads[0].argmax(), counts.heads[0].shape)
    offset = int(counts.offsets[0].argmax())
    words = int(counts.words[1])
    return Relation(
        name,
        words,
        int(layer) + 1,
        int(head),
        DIRECTIONS[direction],
        float(counts.heads[1][direction, layer, head]) / words,
        _OFFSETS[offset],
        float(counts.offsets[1][offset]) / words,
    )


def _predicted_words(
    config: EncoderConfig,
    head: Any,
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    words_BL: jax.Array,
) -> jax.Array:
    """Returns the predicted head of each word, int32 [B, directions, N, H, L] (W = L)."""
    weights = attention_weights(config, head, params, batch)
    length = words_BL.shape[1]
    is_word = jax.nn.one_hot(words_BL, length, axis=1)  # [B, W, L]; no row for -1
    num_tokens = is_word.sum(-1)
    mean = is_word / jnp.maximum(num_tokens, 1)[..., None]
    between = jnp.einsum("bwl,bnhlm,bvm->bnhwv", mean, weights, is_word)
    is_possible = (num_tokens > 0)[:, None, None, None, :] & ~jnp.eye(length, dtype=bool)
    to_head = jnp.where(is_possible, between, -1.0).argmax(-1)
    to_dependent = jnp.where(is_possible, jnp.swapaxes(between, -1, -2), -1.0).argmax(-1)
    return jnp.stack([to_head, to_dependent], axis=1).astype(jnp.int32)
