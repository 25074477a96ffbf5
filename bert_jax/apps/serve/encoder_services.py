"""Serves an encoder: embeddings, masks and attention weights, from texts to results.

A service tokenizes the texts of a request to a `Work`: the sequences that an engine computes, and
how their outputs become the result.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import msgspec
import numpy as np

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.requests import TextInput
from bert_jax.errors import UserError
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.sentence_encoder.config import Normalize, PoolingMode
from bert_jax.models.sentence_encoder.network import build_sentence_encoder
from bert_jax.params.functional import Params
from bert_jax.predict.attention import attention_parts, attention_weights
from bert_jax.predict.batches import Arrays, Backend, Buckets, Engine, JaxBackend, TokenSequence
from bert_jax.predict.embedder import choose_prompt
from bert_jax.predict.fill_mask import mask_candidates
from bert_jax.predict.m3_embedder import compute_token_heads
from bert_jax.pretrained.embedding_model import sentence_model_of
from bert_jax.pretrained.load import LoadedModel, require_masked_lm, require_tokenizer
from bert_jax.tasks.metrics.vectors import normalize_vectors
from bert_jax.text.tokenizer import Tokenizer, check_unicode

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True)
class Work(Generic[T]):
    """Holds what a request needs from the device.

    Attributes:
      engine: the engine that computes it.
      sequences: the rows to compute.
      decode: converts the outputs of the sequences, in their order, to the result.
      num_characters: number of characters of all texts.
      num_truncated: number of texts that were not read completely.
    """

    engine: Engine
    sequences: Sequence[TokenSequence]
    decode: Callable[[Sequence[Arrays]], T]
    num_characters: int = 0
    num_truncated: int = 0

    @property
    def num_tokens(self) -> int:
        """Returns the number of tokens of all sequences."""
        return sum(map(len, self.sequences))

    def map(self, convert: Callable[[T], U]) -> "Work[U]":
        """Returns the work whose result is converted, on the thread that decodes it."""
        changed: Any = dataclasses.replace(
            self, decode=lambda outputs: convert(self.decode(outputs))
        )
        return changed


def refuse_long(
    number: int,
    max_length: int,
    *,
    param: str = "inputs",
    advice: str = 'send "truncate": true to read only a part of each',
) -> None:
    """Raises a RequestError if texts were truncated, although the request or route forbids it.

    Args:
      param: the field of the request that has the texts.
      advice: what a client can do that does not want to shorten them.
    """
    if number:
        raise RequestError(
            "validation",
            f"{number} of the texts have more than {max_length} tokens, which is the maximum of "
            f"this model; shorten them, or {advice}",
            param,
        )


def encode_inputs(
    items: Sequence[TextInput],
    tokenizer: Tokenizer,
    max_length: int,
    *,
    prompt: str = "",
    keep_end: bool = False,
) -> tuple[list[np.ndarray], int]:
    """Tokenizes texts with special tokens; longer ones lose tokens.

    Token ids are taken as they are if they begin and end with special tokens; otherwise special
    tokens are added.

    Args:
      prompt: a text in front of each text; token ids get none.
      keep_end: whether long texts lose their beginning, after the prompt, instead of their end.

    Returns:
      int32 ids of each text, and the number of texts that were cut.

    Raises:
      RequestError: a token id is not in the vocabulary.
      UserError: a text is not valid Unicode.
    """
    texts = [prompt + item for item in items if isinstance(item, str)]
    check_unicode(texts)
    encoded = iter(tokenizer.encode_ids(texts))
    max_tokens = max_length - tokenizer.template.num_single_special_tokens
    num_prompt_tokens = min(len(tokenizer.encode_ids([prompt])[0]), max_tokens) if prompt else 0
    sequences: list[np.ndarray] = []
    num_truncated = 0
    for item in items:
        ids = next(encoded) if isinstance(item, str) else _checked_ids(item, tokenizer)
        num_removed = max(len(ids) - max_tokens, 0)
        num_truncated += num_removed > 0
        first_removed = max_tokens
        if keep_end:
            first_removed = num_prompt_tokens if isinstance(item, str) else 0
        ids = np.concatenate([ids[:first_removed], ids[first_removed + num_removed :]])
        sequences.append(tokenizer.build_inputs_with_special_tokens(ids))
    return sequences, num_truncated


def _checked_ids(ids: list[int], tokenizer: Tokenizer) -> np.ndarray:
    """Returns token ids without the special tokens around them."""
    for token_id in ids:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise RequestError(
                "validation",
                f"the token id {token_id} is not in the vocabulary; expected 0 to "
                f"{tokenizer.vocab_size - 1}",
                "inputs",
            )
    if len(ids) >= 2 and ids[0] == tokenizer.cls_id and ids[-1] == tokenizer.sep_id:
        ids = ids[1:-1]
    return np.array(ids, np.int32)


def count_characters(items: Sequence[TextInput]) -> int:
    """Returns the number of characters of all texts; token ids have none."""
    return sum(len(item) for item in items if isinstance(item, str))


logger = logging.getLogger(__name__)

_PROMPT_LENGTH = "prompt_length"
"""Field of a batch: the number of tokens at the start of a text that are not pooled, int32 [B]."""
_POOLING_NAMES: dict[PoolingMode, str] = {"lasttoken": "last_token"}
"""TEI's names of poolings, where they differ."""

MAX_TOKEN_EMBEDDINGS = 16_384
"""Maximum number of tokens of a request to /embed_all: their JSON has 250 MB at a width of 768."""


class EmbeddingService:
    """Makes the vectors of a sentence encoder; for other encoders, the mean over all tokens.

    Attributes:
      engine: computes the vectors.
      max_length: maximum number of tokens of a text.
      pooling: TEI's name of the pooling.
      width: number of dimensions of a vector.
    """

    def __init__(
        self,
        name: str,
        model: LoadedModel,
        config: ServerConfig,
        backend: Backend | None = None,
        token_heads: Params | None = None,
    ):
        """Moves the encoder to the device.

        Args:
          backend: runs in place of the encoder, and cuts and normalizes vectors itself.
          token_heads: heads that the engine computes too; see `compute_token_heads`.

        Raises:
          UserError: the model has no tokenizer, or modules that are not supported.
        """
        self.tokenizer = require_tokenizer(model)
        sentence_model = sentence_model_of(model)
        if not sentence_model.is_trained:
            logger.info(
                "%s is no sentence encoder, so the vector of a text is the mean over its tokens",
                model.path,
            )
        longest = sentence_model.max_length
        self.max_length = min(config.max_length or longest, longest)
        self._config = sentence_model.config
        self.width = self._config.embedding_size(model.config.hidden_size)
        if backend is not None:
            self.width = self._config.truncate_dim or self.width
        self.pooling = "+".join(_POOLING_NAMES.get(mode, mode) for mode in self._config.pooling)
        # Vectors are normalized after they are cut, and only if a request asks for it, unless there
        # is a `backend`.
        modules = self._config.modules
        self._is_always_normalized = False
        while modules and isinstance(modules[-1], Normalize):
            modules, self._is_always_normalized = modules[:-1], backend is not None
        network_config = dataclasses.replace(self._config, modules=modules)
        network = build_sentence_encoder(model.config, network_config)

        def compute(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            model_params, heads = params
            fields, module = dict(batch), network.merge(model_params)
            lengths = fields.pop(_PROMPT_LENGTH, None)
            hidden = module.encode(fields).last_hidden_state
            vectors = module.sentence_head(hidden, fields["attention_mask"], lengths)
            outputs = {"embedding": vectors, "token_embeddings": hidden}
            return outputs | compute_token_heads(hidden, heads)

        no_prompt = {_PROMPT_LENGTH: np.array(0, np.int32)}
        self.engine = Engine(
            f"the embeddings of {name}",
            backend or JaxBackend(compute, (sentence_model.params, token_heads or {})),
            Buckets(self.max_length, config.max_batch_tokens, config.max_batch_rows),
            pad_id=self.tokenizer.pad_id,
            extra={} if self._config.include_prompt else no_prompt,
        )

    def embed(
        self,
        items: Sequence[TextInput],
        *,
        truncate: bool = True,
        keep_end: bool = False,
        prompt_name: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> Work[np.ndarray]:
        """Tokenizes texts; the result is float32 [texts, D].

        Args:
          dimensions: number of dimensions that are kept, before vectors are normalized.

        Raises:
          RequestError: there is no such prompt, `dimensions` is out of range, or the vectors
            are always normalized.
        """
        if self._is_always_normalized and not normalize:
            message = (
                f"{self.engine.name} come from exported files that normalize them; expected "
                "`normalize`: true"
            )
            raise RequestError("validation", message, "normalize")
        if dimensions is not None and not 1 <= dimensions <= self.width:
            raise RequestError(
                "validation",
                f"`dimensions` is {dimensions}; expected 1 to {self.width}, the width of the model",
                "dimensions",
            )

        def decode(outputs: Sequence[Arrays], ids: Sequence[np.ndarray]) -> np.ndarray:
            return self._vectors(outputs, dimensions, normalize)

        return self._work(items, ("embedding",), decode, truncate, keep_end, prompt_name)

    def _vectors(
        self, outputs: Sequence[Arrays], dimensions: int | None = None, normalize: bool = True
    ) -> np.ndarray:
        # Cut before it is normalized, as Matryoshka models are used: a cut unit vector would not
        # have length 1.
        size = dimensions or self._config.truncate_dim
        vectors = np.stack([output["embedding"] for output in outputs])[:, :size]
        return normalize_vectors(vectors) if normalize else vectors

    def embed_all(
        self,
        items: Sequence[TextInput],
        *,
        truncate: bool = True,
        keep_end: bool = False,
        prompt_name: str | None = None,
    ) -> Work[list[msgspec.Raw]]:
        """Tokenizes texts; the result is the JSON of the hidden states [length, D] of each text.

        Raises:
          RequestError: the texts have more than `MAX_TOKEN_EMBEDDINGS` tokens together.
        """

        def decode(outputs: Sequence[Arrays], ids: Sequence[np.ndarray]) -> list[msgspec.Raw]:
            pairs = zip(outputs, ids, strict=True)
            return [rows_to_json(output["token_embeddings"][: len(row)]) for output, row in pairs]

        work = self._work(items, ("token_embeddings",), decode, truncate, keep_end, prompt_name)
        if work.num_tokens > MAX_TOKEN_EMBEDDINGS:
            raise RequestError(
                "too_large",
                f"the request has {work.num_tokens:,} tokens; /embed_all computes at most "
                f"{MAX_TOKEN_EMBEDDINGS:,}, so send it in several requests",
                "inputs",
            )
        return work

    def _work(
        self,
        items: Sequence[TextInput],
        outputs: tuple[str, ...],
        decode: Callable[[Sequence[Arrays], Sequence[np.ndarray]], T],
        truncate: bool,
        keep_end: bool,
        prompt_name: str | None,
    ) -> Work[T]:
        """Tokenizes texts; `decode` gets the outputs and the token ids of each text."""
        prompt = self.prompt(prompt_name)
        ids, num_truncated = encode_inputs(
            items, self.tokenizer, self.max_length, prompt=prompt, keep_end=keep_end
        )
        if not truncate:
            refuse_long(num_truncated, self.max_length)
        prompt_lengths = self._prompt_lengths(items, prompt)
        return Work(
            engine=self.engine,
            sequences=[
                TokenSequence(
                    input_ids=row,
                    token_type_ids=np.zeros_like(row),
                    extra={} if length is None else {_PROMPT_LENGTH: length},
                    outputs=outputs,
                )
                for row, length in zip(ids, prompt_lengths, strict=True)
            ],
            decode=lambda computed: decode(computed, ids),
            num_characters=count_characters(items),
            num_truncated=num_truncated,
        )

    def prompt(self, name: str | None) -> str:
        """Returns the text of a prompt, or of the default prompt; "" for none.

        Raises:
          RequestError: there is no prompt of that name.
        """
        try:
            return choose_prompt(self._config, name, None)
        except UserError as error:
            raise RequestError("validation", str(error), "prompt_name") from None

    def _prompt_lengths(
        self, items: Sequence[TextInput], prompt: str
    ) -> Sequence[np.ndarray | None]:
        """Returns how many tokens of each input are not pooled; token ids have no prompt.

        Raises:
          RequestError: the prompt leaves no tokens for a text.
        """
        if self._config.include_prompt:
            return [None] * len(items)
        # [CLS] counts, as in sentence-transformers.
        length = len(self.tokenizer.encode_ids([prompt])[0]) + 1 if prompt else 0
        if length > self.max_length - 2:
            message = f"the prompt has {length} tokens, which leaves none of {self.max_length}"
            raise RequestError("validation", f"{message} for a text", "prompt_name")
        return [np.array(length if isinstance(item, str) else 0, np.int32) for item in items]


def vectors_to_json(vectors: Iterable[np.ndarray]) -> list[msgspec.Raw]:
    """Returns the JSON of each vector, float [D]."""
    return [msgspec.Raw(msgspec.json.encode(vector.tolist())) for vector in vectors]


def rows_to_json(rows: np.ndarray) -> msgspec.Raw:
    """Returns the JSON of float [rows, D]; other threads of the server run between two rows."""
    return msgspec.Raw(b"[" + b",".join(msgspec.json.encode(row.tolist()) for row in rows) + b"]")


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
        vocab_size, max_top_k = self.tokenizer.vocab_size, self.max_top_k

        def compute(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            return mask_candidates(
                params,
                batch,
                batch[MASK_POSITIONS],
                config=model.config,
                vocab_size=vocab_size,
                top_k=max_top_k,
            )

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
        # Without truncation, which could cut off the mask.
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


MAX_TOKENS = 128
"""Maximum number of tokens: the JSON of 128 tokens in 12 layers with 12 heads has 11 MB."""
_DECIMALS = 3


class AttentionService:
    """Returns the attention weights of all heads for one text.

    Attributes:
      engine: computes the weights of one text at a time.
      max_length: maximum number of tokens of a text.
    """

    def __init__(self, name: str, model: LoadedModel, config: ServerConfig):
        """Makes an engine on the parameters of the encoder."""
        self._tokenizer = require_tokenizer(model)
        self.max_length = min(MAX_TOKENS, config.max_length or MAX_TOKENS, model.config.max_length)

        def compute(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            return {"attentions": attention_weights(model.config, model.head, params, batch)}

        self.engine = Engine(
            f"the attention weights of {name}",
            JaxBackend(compute, {part: model.params[part] for part in attention_parts(model)}),
            Buckets(self.max_length, max_tokens=self.max_length, max_rows=1),
            pad_id=self._tokenizer.pad_id,
        )

    def attend(self, text: str) -> Work[dict[str, Any]]:
        """Tokenizes a text; the result is its tokens and the weights [N, H, L, L].

        Raises:
          RequestError: the text has more than `max_length` tokens.
        """
        # Without truncation: attention to a part of the text would be shown as if it were all of
        # it.
        (ids,), _ = encode_inputs([text], self._tokenizer, 10**9)
        if len(ids) > self.max_length:
            raise RequestError(
                "validation",
                f"`inputs` has {len(ids)} tokens; attention is shown for at most "
                f"{self.max_length}, so shorten the text",
                "inputs",
            )

        def decode(outputs: Sequence[Arrays]) -> dict[str, Any]:
            weights = outputs[0]["attentions"][..., : len(ids), : len(ids)]
            # Layer by layer, so that other threads of the server run in between.
            layers = [
                msgspec.json.encode(np.round(layer.astype(np.float64), _DECIMALS).tolist())
                for layer in weights
            ]
            return {
                "tokens": [self._tokenizer.id_to_token(int(token_id)) for token_id in ids],
                "attentions": msgspec.Raw(b"[" + b",".join(layers) + b"]"),
            }

        sequence = TokenSequence(
            input_ids=ids, token_type_ids=np.zeros_like(ids), outputs=("attentions",)
        )
        return Work(
            engine=self.engine, sequences=[sequence], decode=decode, num_characters=len(text)
        )
