"""Predicts the most likely tokens at each mask of a text."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.model import build_network
from bert_jax.predict.batches import (
    compute_in_order,
    encode_texts,
    next_power_of_two,
    padded_batches,
    params_to_device,
)
from bert_jax.predict.checks import shown_text
from bert_jax.pretrained.load import AnyModel, require_encoder, require_masked_lm, require_tokenizer


class FillMask:
    """Predicts tokens for masks: `FillMask(load_model("exported"))("The [MASK] of France.")`."""

    def __init__(self, model: AnyModel, *, top_k: int = 5):
        """Moves the parameters to the device.

        Args:
          model: a model with a masked-LM head and a tokenizer.
          top_k: number of candidates for each mask.

        Raises:
          UserError: the model has no masked-LM head or no tokenizer, or `top_k` is out of range.
        """
        model = require_encoder(model, "fill masks")
        self._tokenizer = require_tokenizer(model)
        require_masked_lm(model, "fill masks")
        if not 1 <= top_k <= self._tokenizer.vocab_size:
            raise UserError(
                f"top_k is {top_k}; expected 1 to {self._tokenizer.vocab_size}, the vocabulary"
            )
        self._config, self._path, self._top_k = model.config, model.path, top_k
        parts = ("encoder", *masked_lm_parts(model.config))
        self._params = params_to_device(model, parts)
        self._predict_candidates = jax.jit(
            functools.partial(
                mask_candidates,
                config=model.config,
                vocab_size=self._tokenizer.vocab_size,
                top_k=top_k,
            )
        )

    def __repr__(self) -> str:
        """Returns one line with the model and the number of candidates."""
        return f"<FillMask {self._path}: {self._top_k} candidates>"

    @overload
    def __call__(self, texts: str) -> dict[str, Any]: ...

    @overload
    def __call__(self, texts: list[str] | tuple[str, ...]) -> list[dict[str, Any]]: ...

    def __call__(self, texts: str | Sequence[str]) -> dict[str, Any] | list[dict[str, Any]]:
        """Predicts candidates for the masks of one text, or of each text of a list.

        Returns:
          For each text {"text", "masks": [{"candidates": [{"token", "id", "probability"}]}]}, with
          the most likely candidate first. An empty text has no masks.

        Raises:
          UserError: a text has no mask, or is longer than the model's `max_length`.
        """
        if isinstance(texts, str):
            return self._fill_texts([texts])[0]
        return self._fill_texts(texts)

    def _fill_texts(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        nonempty = [text for text in texts if text.strip()]
        predictions = iter(self._fill_nonempty_texts(nonempty))
        return [
            next(predictions) if text.strip() else {"text": text, "masks": []} for text in texts
        ]

    def _fill_nonempty_texts(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        tokenizer, max_length = self._tokenizer, self._config.max_length
        sequences = encode_texts(texts, tokenizer, max_length)
        for text, sequence in zip(texts, sequences, strict=True):
            if tokenizer.mask_id not in sequence:
                mask = tokenizer.special_tokens.mask
                raise UserError(
                    f"no {mask} in the text {shown_text(text)}; write {mask}, the mask token of "
                    "this model, in place of each missing word"
                )
            if len(sequence) > max_length:
                raise UserError(
                    f"the text {shown_text(text)} has {len(sequence)} tokens, this model reads "
                    f"{max_length}; shorten it around its mask"
                )
        outputs = compute_in_order(
            padded_batches(sequences, pad_id=tokenizer.pad_id, max_length=max_length),
            self._compute,
            len(texts),
        )
        predictions: list[dict[str, Any]] = []
        for index, (text, sequence) in enumerate(zip(texts, sequences, strict=True)):
            ids, probabilities = outputs["ids"][index], outputs["probabilities"][index]
            masks = range(sequence.count(tokenizer.mask_id))
            formatted = [self._format_candidates(ids[mask], probabilities[mask]) for mask in masks]
            predictions.append({"text": text, "masks": formatted})
        return predictions

    def _compute(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        positions = _mask_positions(batch["input_ids"] == self._tokenizer.mask_id)
        return self._predict_candidates(self._params, batch, positions)

    def _format_candidates(self, ids: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
        candidates = [
            {
                "token": self._tokenizer.id_to_token(int(i)),
                "id": int(i),
                "probability": float(probability),
            }
            for i, probability in zip(ids, probabilities, strict=True)
        ]
        return {"candidates": candidates}


def mask_candidates(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    positions: jax.Array,
    *,
    config: EncoderConfig,
    vocab_size: int,
    top_k: int,
) -> dict[str, jax.Array]:
    """Returns the most likely tokens at `positions` [B, P], the most likely first.

    They are "ids", int32, and "probabilities", float32; both [B, P, top_k].
    """
    model = build_network(config, ("masked_lm",)).merge(dict(params))
    hidden = model.encode(batch).last_hidden_state
    logits = model.masked_lm_logits(gather_positions(hidden, positions))
    # The embedding table may be padded: its rows beyond the vocabulary are not tokens.
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits[..., :vocab_size]), top_k)
    return {"ids": ids.astype(jnp.int32), "probabilities": probabilities}


def _mask_positions(is_mask: np.ndarray) -> np.ndarray:
    """Returns the positions where each row is True, int32 [B, P], padded with 0; P = 2^n."""
    # A power of two, because each other number of masks would compile another program.
    width = next_power_of_two(int(is_mask.sum(axis=1).max()))
    positions = np.zeros((len(is_mask), width), np.int32)
    for row, row_is_mask in zip(positions, is_mask, strict=True):
        row_positions = np.flatnonzero(row_is_mask)
        row[: len(row_positions)] = row_positions
    return positions
