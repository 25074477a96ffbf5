"""Embeds texts for the server: one vector for a text, or one for each token."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import msgspec
import numpy as np

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.engine import Arrays, Backend, Buckets, Engine, JaxBackend, TokenSequence
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.requests import TextInput
from bert_jax.apps.serve.work import Work, count_characters, encode_inputs, refuse_long
from bert_jax.errors import UserError
from bert_jax.models.sentence_encoder.config import Normalize, PoolingMode
from bert_jax.models.sentence_encoder.network import build_sentence_encoder
from bert_jax.predict.batching import require_tokenizer
from bert_jax.predict.sentence_texts import choose_prompt
from bert_jax.pretrained.load import LoadedModel
from bert_jax.pretrained.sentence_model import sentence_model_of
from bert_jax.tasks.metrics.vectors import normalize_vectors

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
        self, name: str, model: LoadedModel, config: ServerConfig, backend: Backend | None = None
    ):
        """Moves the encoder to the device.

        Args:
          backend: runs in place of the encoder, and cuts and normalizes vectors itself.

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
            fields, module = dict(batch), network.merge(params)
            lengths = fields.pop(_PROMPT_LENGTH, None)
            hidden = module.encode(fields).last_hidden_state
            vectors = module.sentence_head(hidden, fields["attention_mask"], lengths)
            return {"embedding": vectors, "token_embeddings": hidden}

        no_prompt = {_PROMPT_LENGTH: np.array(0, np.int32)}
        self.engine = Engine(
            f"the embeddings of {name}",
            backend or JaxBackend(compute, sentence_model.params),
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

        size = dimensions or self._config.truncate_dim

        def decode(outputs: Sequence[Arrays]) -> np.ndarray:
            vectors = np.stack([output["embedding"] for output in outputs])[:, :size]
            return normalize_vectors(vectors) if normalize else vectors

        return self._work(items, "embedding", decode, truncate, keep_end, prompt_name)

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
        lengths: list[int] = []

        def decode(outputs: Sequence[Arrays]) -> list[msgspec.Raw]:
            pairs = zip(outputs, lengths, strict=True)
            return [_rows_to_json(output["token_embeddings"][:length]) for output, length in pairs]

        work = self._work(items, "token_embeddings", decode, truncate, keep_end, prompt_name)
        lengths += map(len, work.sequences)
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
        output: str,
        decode: Any,
        truncate: bool,
        keep_end: bool,
        prompt_name: str | None,
    ) -> Work[Any]:
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
                    outputs=(output,),
                )
                for row, length in zip(ids, prompt_lengths, strict=True)
            ],
            decode=decode,
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


def vectors_to_json(work: Work[np.ndarray]) -> Work[list[msgspec.Raw]]:
    """Returns the work whose result is the JSON of each vector, made on a thread of the pool."""

    def decode(outputs: Sequence[Arrays]) -> list[msgspec.Raw]:
        return [msgspec.Raw(msgspec.json.encode(row.tolist())) for row in work.decode(outputs)]

    return dataclasses.replace(cast(Work[Any], work), decode=decode)


def _rows_to_json(rows: np.ndarray) -> msgspec.Raw:
    """Returns the JSON of float [rows, D]; other threads of the server run between two rows."""
    return msgspec.Raw(b"[" + b",".join(msgspec.json.encode(row.tolist()) for row in rows) + b"]")
