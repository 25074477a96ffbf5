"""Writes text with an encoder: masks after a text become tokens, some in each step.

This is how models of masked diffusion generate (LLaDA, Nie et al. 2025, section 2.4): each step
predicts all masks at once, keeps the tokens of which the model is most sure, or random ones, and
masks the others again. The number of tokens of a step is the same up to one.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.generation import Sampling, UnmaskingConfig
from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.model import build_network
from bert_jax.predict.batches import (
    compute_in_order,
    next_power_of_two,
    padded_batches,
    params_to_device,
)
from bert_jax.predict.checks import shown_text
from bert_jax.predict.generator import cut_to_likely
from bert_jax.predict.text_writer import Generated, TextWriter, with_text_indices
from bert_jax.pretrained.load import AnyModel, require_encoder, require_masked_lm, require_tokenizer

_ORDER = 1 << 20
"""Stands for the step in the keys of a random order, which is more steps than any text has."""


@functools.partial(jax.jit, static_argnames=("config", "settings"))
def unmask(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    positions_BP: jax.Array,
    is_masked_BP: jax.Array,
    text_indices: jax.Array,
    is_special_V: jax.Array,
    *,
    config: EncoderConfig,
    settings: UnmaskingConfig,
) -> jax.Array:
    """Replaces the masks of a batch; compiled once for each shape and for each setting.

    Args:
      params: the parameters of the encoder and its masked-LM head, nested.
      batch: the encoder's fields, int32 [B, L].
      positions_BP: int32 [B, P], the positions of the masks, and 0 where unused.
      is_masked_BP: bool [B, P], False where unused.
      text_indices: int32 [B], from which random numbers are derived.
      is_special_V: bool [V], tokens that are never written.

    Returns:
      int32 [B, L]: the token ids without masks.
    """
    model = build_network(config, ("masked_lm",)).merge(dict(params))
    rows = jnp.arange(len(positions_BP))[:, None]
    num_masks = jnp.sum(is_masked_BP, axis=1)
    num_steps = jnp.max(num_masks)
    if settings.num_steps is not None:
        num_steps = jnp.minimum(num_steps, settings.num_steps)

    def step(index: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        input_ids, is_masked = state
        hidden = model.encode({**batch, "input_ids": input_ids}).last_hidden_state
        logits = model.masked_lm_logits(gather_positions(hidden, positions_BP))
        logits = jnp.where(is_special_V, -jnp.inf, logits[..., : len(is_special_V)])
        chosen = _choose(logits.astype(jnp.float32), settings, index, positions_BP, text_indices)
        if settings.order == "random":
            keys = _keys(settings.seed, jnp.int32(_ORDER), positions_BP, text_indices)
            scores = jax.vmap(jax.vmap(jax.random.uniform))(keys)
        else:
            # Of the distribution of the model, without temperature, as in LLaDA.
            probabilities = jax.nn.softmax(logits.astype(jnp.float32))
            scores = jnp.take_along_axis(probabilities, chosen[..., None], axis=-1)[..., 0]
        # The first steps replace one mask more, if the masks cannot be divided evenly.
        divisor = jnp.maximum(num_steps, 1)
        has_one_more = (index < num_masks % divisor).astype(jnp.int32)
        count = num_masks // divisor + has_one_more
        order = jnp.argsort(jnp.where(is_masked, -scores, jnp.inf), axis=1)
        is_chosen = is_masked & (jnp.argsort(order, axis=1) < count[:, None])
        # Added and not set, because unused entries all point to position 0.
        old_ids = jnp.take_along_axis(input_ids, positions_BP, axis=1)
        change = jnp.where(is_chosen, chosen - old_ids, 0)
        return input_ids.at[rows, positions_BP].add(change), is_masked & ~is_chosen

    first = (batch["input_ids"], is_masked_BP)
    return jax.lax.fori_loop(0, num_steps, step, first)[0]


def _choose(
    logits_BPV: jax.Array,
    settings: UnmaskingConfig,
    step: jax.Array,
    positions_BP: jax.Array,
    text_indices: jax.Array,
) -> jax.Array:
    """Returns the token of each mask, int32 [B, P]."""
    if not isinstance(settings.decoding, Sampling):
        return jnp.argmax(logits_BPV, axis=-1).astype(jnp.int32)
    B, P, V = logits_BPV.shape
    likely = cut_to_likely(logits_BPV.reshape(B * P, V), settings.decoding).reshape(B, P, V)
    keys = _keys(settings.seed, step, positions_BP, text_indices)
    return jax.vmap(jax.vmap(jax.random.categorical))(keys, likely).astype(jnp.int32)


def _keys(
    seed: int, step: jax.Array, positions_BP: jax.Array, text_indices: jax.Array
) -> jax.Array:
    """Returns a key for each mask, [B, P], so that a text does not depend on its batch."""
    fold_in = jax.random.fold_in
    step_key = fold_in(jax.random.key(seed), step)

    def keys_of_text(index: jax.Array, positions: jax.Array) -> jax.Array:
        text_key = fold_in(step_key, index)
        return jax.vmap(lambda position: fold_in(text_key, position))(positions)

    return jax.vmap(keys_of_text)(text_indices, positions_BP)


class Unmasker(TextWriter):
    """Writes texts with an encoder: `Unmasker(load_model("runs/diffusion"))("Once upon a time")`.

    Masks in a text become tokens, and so do the masks that are added after it; an empty text is
    written from nothing. The result contains the given text as well. It is always complete, because
    its length is given. A text must fit the model with its masks, and have at least one.

    One program is compiled for each shape of a batch.
    """

    def __init__(
        self,
        model: AnyModel,
        settings: UnmaskingConfig = UnmaskingConfig(),  # noqa: B008 (frozen)
    ):
        """Copies the parameters to the device.

        Raises:
          UserError: the model is no encoder, or it has no masked-LM head or no tokenizer.
        """
        model = require_encoder(model, "replace masks")
        self._tokenizer = require_tokenizer(model)
        require_masked_lm(model, "replace masks")
        self._config, self._path, self._settings = model.config, model.path, settings
        self._params = params_to_device(model, ("encoder", *masked_lm_parts(model.config)))
        self._is_special = np.zeros(self._tokenizer.vocab_size, bool)
        self._is_special[list(self._tokenizer.special_ids)] = True

    def __repr__(self) -> str:
        """Returns one line with the model and its settings."""
        settings = self._settings
        steps = "one step for each token" if settings.num_steps is None else settings.num_steps
        return f"<Unmasker {self._path}: {settings.num_tokens} new tokens, steps: {steps}>"

    def _write(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int], None] | None,
        first_index: int,
    ) -> list[Generated]:
        tokenizer = self._tokenizer
        batches = padded_batches(
            self._encode(texts), pad_id=tokenizer.pad_id, max_length=self._config.max_length
        )

        outputs = compute_in_order(
            with_text_indices(batches, range(first_index, first_index + len(texts))),
            self._compute,
            len(texts),
            lambda rows: None if on_progress is None else on_progress(len(rows)),
        )
        special_ids, results = tokenizer.special_ids, list[Generated]()
        for row in outputs.get("token_ids", []):
            token_ids = [int(i) for i in row if int(i) not in special_ids]
            results.append(Generated(tokenizer.decode(token_ids).strip(), token_ids, True))
        return results

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text and the masks after it, with special tokens."""
        tokenizer, limit = self._tokenizer, self._config.max_length
        masks = [tokenizer.mask_id] * self._settings.num_tokens
        sequences: list[list[int]] = []
        for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
            inputs = tokenizer.build_inputs_with_special_tokens([*encoding.ids, *masks]).tolist()
            if tokenizer.mask_id not in inputs:
                raise UserError(
                    f"no {tokenizer.special_tokens.mask} in the text {shown_text(text)}, and no "
                    "new tokens are requested; add masks, or set num_tokens (--max-new-tokens)"
                )
            if len(inputs) > limit:
                raise UserError(
                    f"the text {shown_text(text)} has {len(inputs)} tokens with the new ones, but "
                    f"the model reads at most {limit}; shorten it, or set a smaller num_tokens "
                    "(--max-new-tokens)"
                )
            sequences.append(inputs)
        return sequences

    def _compute(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        is_mask = batch["input_ids"] == self._tokenizer.mask_id
        # A power of two, because each other number of masks would compile another program.
        num_masks = is_mask.sum(axis=1)
        width = next_power_of_two(int(num_masks.max()))
        # Stable, so that the masks of a row come first and in order.
        positions = np.argsort(~is_mask, axis=1, kind="stable")[:, :width]
        is_used = np.arange(positions.shape[1]) < num_masks[:, None]
        fields = ("input_ids", "token_type_ids", "attention_mask")
        token_ids = unmask(
            self._params,
            {name: batch[name] for name in fields},
            np.where(is_used, positions, 0).astype(np.int32),
            is_used,
            batch["text_indices"],
            self._is_special,
            config=self._config,
            settings=self._settings,
        )
        return {"token_ids": token_ids}
