"""Fills masks for the server: the most likely tokens at each mask of a text."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.engine import Arrays, Backend, Buckets, Engine, JaxBackend, TokenSequence
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.work import Work, count_characters, encode_inputs
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.model import build_network
from bert_jax.predict.batching import require_masked_lm, require_tokenizer
from bert_jax.pretrained.load import LoadedModel

MASK_POSITIONS = "mask_positions"
"""Field of a batch: the positions of masks, int32 [B, MASKS_PER_SEQUENCE]."""
MASKS_PER_SEQUENCE = 4
"""Masks that a row of a batch has room for; a text with more is computed in several rows."""
MAX_TOP_K = 100
MAX_CANDIDATES = 10_000
"""Maximum number of candidates of a request: each of them is decoded, with its text."""
_MAX_ROWS = 8


class FillMaskService:
    """Predicts tokens for masks.

    Attributes:
      engine: computes the most likely tokens and their probabilities.
      max_length: maximum number of tokens of a text.
    """

    def __init__(
        self, name: str, model: LoadedModel, config: ServerConfig, backend: Backend | None = None
    ):
        """Moves the encoder and the masked-LM head to the device, unless there is a `backend`."""
        self.tokenizer = require_tokenizer(model)
        require_masked_lm(model, "fill masks")
        self.max_length = min(config.max_length or model.config.max_length, model.config.max_length)
        self.max_top_k = min(MAX_TOP_K, self.tokenizer.vocab_size)
        network = build_network(model.config, ("masked_lm",))
        vocab_size, max_top_k = self.tokenizer.vocab_size, self.max_top_k

        def compute(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            module = network.merge(params)
            hidden = module.encode(batch).last_hidden_state
            logits = module.masked_lm_logits(gather_positions(hidden, batch[MASK_POSITIONS]))
            # The embedding table may be padded: its rows beyond the vocabulary are not tokens.
            probabilities = jax.nn.softmax(logits[..., :vocab_size])
            top_probabilities, ids = jax.lax.top_k(probabilities, max_top_k)
            return {"ids": ids.astype(jnp.int32), "probabilities": top_probabilities}

        parts = ("encoder", *masked_lm_parts(model.config))
        self.engine = Engine(
            f"the filled masks of {name}",
            backend or JaxBackend(compute, {part: model.params[part] for part in parts}),
            Buckets(
                self.max_length, config.max_batch_tokens, min(config.max_batch_rows, _MAX_ROWS)
            ),
            pad_id=self.tokenizer.pad_id,
            extra={MASK_POSITIONS: np.zeros(MASKS_PER_SEQUENCE, np.int32)},
        )

    def fill(self, texts: Sequence[str], top_k: int) -> Work[list[list[list[dict[str, Any]]]]]:
        """Tokenizes texts; the result is, for each text and mask, the candidates.

        Raises:
          RequestError: a text has no mask or is too long, `top_k` is out of range, or the masks
            have more than `MAX_CANDIDATES` candidates together.
        """
        if not 1 <= top_k <= self.max_top_k:
            message = f"`top_k` is {top_k}; expected 1 to {self.max_top_k}"
            raise RequestError("validation", message, "top_k")
        ids, _ = encode_inputs(texts, self.tokenizer, 10**9)
        sequences: list[TokenSequence] = []
        positions: list[np.ndarray] = []
        for index, row in enumerate(ids):
            found = np.flatnonzero(row == self.tokenizer.mask_id)
            self._check(index, row, found)
            positions.append(found)
            for first in range(0, len(found), MASKS_PER_SEQUENCE):
                chosen = np.zeros(MASKS_PER_SEQUENCE, np.int32)
                part = found[first : first + MASKS_PER_SEQUENCE]
                chosen[: len(part)] = part
                sequences.append(
                    TokenSequence(
                        input_ids=row,
                        token_type_ids=np.zeros_like(row),
                        extra={MASK_POSITIONS: chosen},
                        outputs=("ids", "probabilities"),
                    )
                )
        self._check_candidates(sum(map(len, positions)), top_k)

        def decode(outputs: Sequence[Arrays]) -> list[list[list[dict[str, Any]]]]:
            remaining, results = iter(outputs), []
            for row, found in zip(ids, positions, strict=True):
                num_rows = -(-len(found) // MASKS_PER_SEQUENCE)
                arrays = [next(remaining) for _ in range(num_rows)]
                top_ids = np.concatenate([each["ids"] for each in arrays])[: len(found), :top_k]
                scores = np.concatenate([each["probabilities"] for each in arrays])
                results.append(
                    [
                        self._candidates(row, position, top_ids[mask], scores[mask])
                        for mask, position in enumerate(found)
                    ]
                )
            return results

        return Work(
            engine=self.engine,
            sequences=sequences,
            decode=decode,
            num_characters=count_characters(texts),
        )

    def _check(self, index: int, row: np.ndarray, found: np.ndarray) -> None:
        if not len(found):
            mask = self.tokenizer.special_tokens.mask
            raise RequestError(
                "validation",
                f"`inputs[{index}]` has no {mask}; write {mask} in place of each missing word",
                "inputs",
            )
        if len(row) > self.max_length:
            raise RequestError(
                "validation",
                f"`inputs[{index}]` has {len(row)} tokens; expected at most {self.max_length}, so "
                "shorten it around its mask",
                "inputs",
            )

    def _check_candidates(self, num_masks: int, top_k: int) -> None:
        if num_masks * top_k > MAX_CANDIDATES:
            raise RequestError(
                "validation",
                f"the request has {num_masks:,} masks, with {top_k} tokens for each; expected at "
                f"most {MAX_CANDIDATES:,} tokens for all masks, so send several requests, or a "
                "smaller `top_k`",
                "top_k",
            )

    def _candidates(
        self, row: np.ndarray, position: int, ids: np.ndarray, probabilities: np.ndarray
    ) -> list[dict[str, Any]]:
        """Returns the candidates of one mask in the shape of transformers' fill-mask pipeline."""
        candidates: list[dict[str, Any]] = []
        for token_id, probability in zip(ids.tolist(), probabilities.tolist(), strict=False):
            filled = row.copy()
            filled[position] = token_id
            special = self.tokenizer.special_ids - {self.tokenizer.mask_id}
            candidates.append(
                {
                    "score": probability,
                    "token": token_id,
                    "token_str": self.tokenizer.decode([token_id]).strip(),
                    "sequence": self.tokenizer.decode([i for i in filled if i not in special]),
                }
            )
        return candidates
