"""Embeds texts for the server: one vector for a text, or one for each token."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.model import build_network
from bert_jax.predict.batching import require_tokenizer
from bert_jax.pretrained.load import LoadedModel, require_no_adapter
from bert_jax.serve.config import ServerConfig
from bert_jax.serve.engine import Arrays, Buckets, Engine, JaxBackend, TokenSequence
from bert_jax.serve.request_error import RequestError
from bert_jax.serve.requests import TextInput
from bert_jax.serve.work import Work, count_characters, encode_inputs, refuse_long


class EmbeddingService:
    """Makes embeddings: the mean of the hidden states of a text's tokens.

    Attributes:
      engine: computes the vectors.
      max_length: maximum number of tokens of a text.
      pooling: TEI's name of the pooling.
      width: number of dimensions of a vector.
    """

    pooling = "mean"

    def __init__(self, name: str, model: LoadedModel, config: ServerConfig):
        """Moves the encoder to the device."""
        self.tokenizer = require_tokenizer(model)
        require_no_adapter(model, "embed")
        self.max_length = min(config.max_length or model.config.max_length, model.config.max_length)
        self.width = model.config.hidden_size
        self.prompts: dict[str, str] = {}
        self.engine = Engine(
            f"the embeddings of {name}",
            JaxBackend(make_compute(model.config), model.params["encoder"]),
            Buckets(self.max_length, config.max_batch_tokens, config.max_batch_rows),
            pad_id=self.tokenizer.pad_id,
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
          RequestError: there is no such prompt, or `dimensions` is out of range.
        """
        if dimensions is not None and not 1 <= dimensions <= self.width:
            raise RequestError(
                "validation",
                f"`dimensions` is {dimensions}; expected 1 to {self.width}, the width of the model",
                "dimensions",
            )

        def decode(outputs: Sequence[Arrays]) -> np.ndarray:
            vectors = np.stack([output["embedding"] for output in outputs])[:, :dimensions]
            if normalize:
                norms = np.linalg.norm(vectors, axis=1, keepdims=True)
                vectors = vectors / np.maximum(norms, np.float32(1e-12))
            return vectors

        return self._work(items, "embedding", decode, truncate, keep_end, prompt_name)

    def embed_all(
        self,
        items: Sequence[TextInput],
        *,
        truncate: bool = True,
        keep_end: bool = False,
        prompt_name: str | None = None,
    ) -> Work[list[np.ndarray]]:
        """Tokenizes texts; the result is the hidden state of each token, float32 [length, D]."""
        lengths: list[int] = []

        def decode(outputs: Sequence[Arrays]) -> list[np.ndarray]:
            pairs = zip(outputs, lengths, strict=True)
            return [output["token_embeddings"][:length] for output, length in pairs]

        work = self._work(items, "token_embeddings", decode, truncate, keep_end, prompt_name)
        lengths += map(len, work.sequences)
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
        ids, num_truncated = encode_inputs(
            items,
            self.tokenizer,
            self.max_length,
            prompt=self._prompt(prompt_name),
            keep_end=keep_end,
        )
        if not truncate:
            refuse_long(num_truncated, self.max_length)
        return Work(
            engine=self.engine,
            sequences=[
                TokenSequence(input_ids=row, token_type_ids=np.zeros_like(row), outputs=(output,))
                for row in ids
            ],
            decode=decode,
            num_characters=count_characters(items),
            num_truncated=num_truncated,
        )

    def _prompt(self, name: str | None) -> str:
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            message = f"there is no prompt {name!r}; the prompts of the model: {known}"
            raise RequestError("validation", message, "prompt_name")
        return self.prompts[name]


def make_compute(config: EncoderConfig) -> Any:
    """Returns the pure function of the encoder's parameters and a batch that an engine runs."""

    def compute(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        hidden = build_network(config).merge({"encoder": params}).encode(batch).last_hidden_state
        mask = (batch["attention_mask"] > 0)[..., None]
        total = jnp.sum(jnp.where(mask, hidden, 0.0), axis=1)
        return {
            "embedding": total / jnp.sum(mask, axis=1).astype(total.dtype),
            "token_embeddings": hidden,
        }

    return compute
