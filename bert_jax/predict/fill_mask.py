"""The likeliest tokens at each mask of a text."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.config import BertConfig
from bert_jax.models.heads import gather_positions
from bert_jax.predict.batching import batches, round_up
from bert_jax.predict.model import encode, on_device, require_vocabulary
from bert_jax.programs import parts
from bert_jax.train.pretrained import LoadedModel


class FillMask:
    """Fills masks: `FillMask(load_model("exported"))(["Paris is the [MASK] of France."])`."""

    def __init__(self, model: LoadedModel, *, top: int = 5):
        """Puts the model on the device.

        Args:
          model: one with a masked-LM head and a vocabulary.
          top: number of candidates for each mask.

        Raises:
          UserError: the model has no masked-LM head or no vocabulary, or `top` is out of range.
        """
        self._vocabulary = require_vocabulary(model)
        if "masked_lm" in model.missing:
            raise UserError(f"{model.origin} has no masked-LM head, so it cannot fill masks")
        if not 1 <= top <= self._vocabulary.size:
            raise UserError(f"top is {top}; expected 1 to {self._vocabulary.size}, the vocabulary")
        self._config = model.config
        self._params = {part: on_device(model, part) for part in ("encoder", "masked_lm")}
        self._candidates = jax.jit(
            functools.partial(_candidates, config=model.config, size=self._vocabulary.size, top=top)
        )

    def __call__(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """For each text {"text", "masks": [{"candidates": [{"token", "id", "probability"}]}]}.

        Raises:
          UserError: a text without a mask, or longer than the model reads (named).
        """
        vocabulary, longest = self._vocabulary, self._config.positions.max_length
        rows = encode(texts, vocabulary, longest)
        for text, row in zip(texts, rows, strict=True):
            if vocabulary.mask_id not in row:
                raise UserError(f"no {vocabulary.special.mask} in the text {_short(text)}")
            if len(row) > longest:
                raise UserError(
                    f"the text {_short(text)} has {len(row)} tokens, this model reads {longest}; "
                    "shorten it around its mask"
                )
        answers: list[dict[str, Any]] = [{}] * len(texts)
        for indices, batch in batches(rows, pad_id=vocabulary.pad_id, max_length=longest):
            positions = _positions(batch["input_ids"] == vocabulary.mask_id)
            ids, shares = jax.device_get(self._candidates(self._params, batch, positions))
            for place, index in enumerate(indices):
                count = rows[index].count(vocabulary.mask_id)
                masks = [
                    self._mask(*pair)
                    for pair in zip(ids[place, :count], shares[place, :count], strict=True)
                ]
                answers[index] = {"text": texts[index], "masks": masks}
        return answers

    def _mask(self, ids: np.ndarray, shares: np.ndarray) -> dict[str, Any]:
        candidates = [
            {"token": self._vocabulary.token(int(i)), "id": int(i), "probability": float(share)}
            for i, share in zip(ids, shares, strict=True)
        ]
        return {"candidates": candidates}


def _candidates(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    positions: jax.Array,
    *,
    config: BertConfig,
    size: int,
    top: int,
) -> tuple[jax.Array, jax.Array]:
    """Ids and probabilities, int32 and float32 [B, P, top], best first, at `positions` [B, P]."""
    encoder = parts.network("encoder", config).bind(params["encoder"])
    fields = ("input_ids", "token_type_ids", "attention_mask")
    hidden = encoder(*(batch[name] for name in fields)).last_hidden_state
    head = parts.network("masked_lm", config).bind(params["masked_lm"])
    table = encoder.embeddings.word_embeddings.embedding[...]
    logits = head(gather_positions(hidden, positions), table)
    # Rows of the table beyond the vocabulary are padding: they stand for no token.
    shares, ids = jax.lax.top_k(jax.nn.softmax(logits[..., :size]), top)
    return ids.astype(jnp.int32), shares


def _positions(masked: np.ndarray) -> np.ndarray:
    """Where each row is True, int32 [B, P], filled up with 0; P is a power of two."""
    width = round_up(int(masked.sum(axis=1).max()))
    positions = np.zeros((len(masked), width), np.int32)
    for row, places in zip(positions, masked, strict=True):
        found = np.flatnonzero(places)
        row[: len(found)] = found
    return positions


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
