"""Computes dense, sparse and multi-vector embeddings in one forward pass (BGE-M3).

from bert_jax.predict.m3_embedder import M3Embedder
embed = M3Embedder(load_model("bge-m3"))
vectors = embed(["A man repairs a net."])
vectors.dense                                # float32 [N, D]
vectors.sparse                               # SciPy's csr_array [N, V]
vectors.multi_vector                         # float32 [tokens, E] for each text
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from bert_jax.errors import UserError
from bert_jax.interop.m3_heads import M3_HEADS, read_m3_head
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.models.sentence_encoder.network import build_sentence_encoder
from bert_jax.models.sentence_encoder.network import normalize as normalize_vectors
from bert_jax.params.functional import Params
from bert_jax.predict.batches import padded_batches
from bert_jax.predict.embedder import choose_prompt, tokenize_with_prompt
from bert_jax.predict.multi_vector_embedder import TokenVectors
from bert_jax.predict.sparse_embedder import SparseRow, name_weights, stack_rows
from bert_jax.pretrained.embedding_model import sentence_model_of
from bert_jax.pretrained.load import AnyModel, require_encoder, require_tokenizer
from bert_jax.text.tokenizer import Tokenizer

KINDS: tuple[EmbeddingKind, ...] = ("dense", "sparse", "multi_vector")


class M3Vectors(NamedTuple):
    """Holds the embeddings of texts; None for kinds that were not chosen.

    Attributes:
      dense: float32 [N, D].
      sparse: float32 [N, V], the weight of each token of the text.
      multi_vector: the vectors of all tokens of each text but the first, [CLS].
      truncated: whether each text was truncated.
    """

    dense: np.ndarray | None
    sparse: scipy.sparse.csr_array | None
    multi_vector: list[TokenVectors] | None
    truncated: list[bool]


class M3Embedder:
    """Embeds texts in several ways at once, with a folder in the layout of BGE-M3.

    The dense vector is that of `Embedder`. A token of the text has the largest weight that it has
    at any of its positions, relu(linear(hidden state)), and special tokens have none. The vector of
    a token is linear(hidden state), normalized (Chen et al. 2024, "BGE M3-Embedding", section 3.2).

    Attributes:
      kinds: what is computed.
      max_length: to how many tokens texts are truncated, special tokens included.
    """

    def __init__(self, model: AnyModel, kinds: Sequence[EmbeddingKind] = KINDS):
        """Moves the parameters to the device.

        Args:
          kinds: what is computed, at least one of dense, sparse and multi_vector.

        Raises:
          UserError: as `Embedder`; or the folder has no head of one of the kinds.
        """
        if not kinds or not set(kinds) <= set(KINDS):
            raise UserError(f"kinds is {tuple(kinds)}; expected at least one of {', '.join(KINDS)}")
        self._model = sentence_model_of(require_encoder(model, "embed"))
        self._tokenizer = require_tokenizer(self._model.model)
        self.kinds, self.max_length = tuple(kinds), self._model.max_length
        folder, config = Path(self._model.model.path), self._model.model.config
        heads = {
            kind: read_m3_head(folder, kind, config.hidden_size)
            for kind in self.kinds
            if kind in M3_HEADS
        }
        self._params: Params = jax.device_put(self._model.params)
        self._heads: Params = jax.device_put(heads)
        self._compiled = jax.jit(
            functools.partial(
                _embed, encoder_config=config, config=self._model.config, kinds=self.kinds
            )
        )

    def __call__(
        self, texts: Sequence[str], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> M3Vectors:
        """Returns the embeddings of texts; longer ones are truncated.

        Args:
          prompt_name: the name of one of the model's prompts; None is its default, if it has one.
          prompt: the prompt itself, in place of a name; "" for no prompt.

        Raises:
          UserError: the model has no such prompt, or both are given.
        """
        config = self._model.config
        tokenized = tokenize_with_prompt(
            texts,
            self._tokenizer,
            config,
            self.max_length,
            choose_prompt(config, prompt_name, prompt),
        )
        full_size = config.embedding_size(self._model.model.config.hidden_size)
        dense = np.zeros((len(texts), config.truncate_dim or full_size), np.float32)
        rows: dict[int, SparseRow] = {}
        tokens: dict[int, TokenVectors] = {}
        for indices, batch in padded_batches(
            tokenized.sequences, pad_id=self._tokenizer.pad_id, max_length=self.max_length
        ):
            lengths = None
            if tokenized.prompt_length is not None:
                lengths = np.full(len(batch["input_ids"]), tokenized.prompt_length, np.int32)
            outputs = jax.device_get(self._compiled(self._params, self._heads, batch, lengths))
            for row, index in enumerate(indices):
                ids = np.array(tokenized.sequences[index], np.int32)
                if "dense" in outputs:
                    dense[index] = outputs["dense"][row]
                if "sparse" in outputs:
                    weights = outputs["sparse"][row, : len(ids)]
                    rows[index] = largest_of_tokens(ids, weights, self._tokenizer)
                if "multi_vector" in outputs:
                    vectors = outputs["multi_vector"][row, 1 : len(ids)].copy()
                    tokens[index] = TokenVectors(vectors, ids[1:], tokenized.truncated[index])
        numbers, size = range(len(texts)), self._model.model.config.vocab_size
        return M3Vectors(
            dense=dense if "dense" in self.kinds else None,
            sparse=stack_rows([rows[n] for n in numbers], size) if "sparse" in self.kinds else None,
            multi_vector=[tokens[n] for n in numbers] if "multi_vector" in self.kinds else None,
            truncated=tokenized.truncated,
        )

    def weights(self, vectors: scipy.sparse.csr_array) -> list[dict[str, float]]:
        """Returns the weight of each token that has one, largest first, for each vector."""
        return name_weights(vectors, self._tokenizer)

    def tokens(self, embedded: TokenVectors) -> list[str]:
        """Returns the token of each vector of a text."""
        return [self._tokenizer.id_to_token(int(token_id)) for token_id in embedded.token_ids]


def largest_of_tokens(ids: np.ndarray, weights: np.ndarray, tokenizer: Tokenizer) -> SparseRow:
    """Returns the sparse vector of a text: the largest weight of each token, special ones left out.

    Args:
      ids: int32 [length], with special tokens.
      weights: float32 [length].
    """
    special = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.unk_id)
    has_weight = (weights > 0) & ~np.isin(ids, special)
    indices, inverse = np.unique(ids[has_weight], return_inverse=True)
    largest = np.zeros(len(indices), np.float32)
    np.maximum.at(largest, inverse, weights[has_weight])
    return indices, largest


def _embed(
    params: Params,
    heads: Params,
    batch: Mapping[str, jax.Array],
    prompt_lengths: jax.Array | None,
    *,
    encoder_config: EncoderConfig,
    config: SentenceEncoderConfig,
    kinds: tuple[EmbeddingKind, ...],
) -> dict[str, jax.Array]:
    """Returns "dense" [B, D], "sparse" [B, L] and "multi_vector" [B, L, E], as far as chosen."""
    network = build_sentence_encoder(encoder_config, config).merge(params)
    hidden_BLD = network.encode(batch).last_hidden_state
    outputs = compute_token_heads(hidden_BLD, heads)
    if "dense" in kinds:
        vectors = network.sentence_head(hidden_BLD, batch["attention_mask"], prompt_lengths)
        outputs["dense"] = vectors[:, : config.truncate_dim]
    return outputs


def compute_token_heads(hidden_BLD: jax.Array, heads: Params) -> dict[str, jax.Array]:
    """Returns "sparse" [B, L] and "multi_vector" [B, L, E], float32, for the heads there are."""
    outputs: dict[str, jax.Array] = {}
    if "sparse" in heads:
        outputs["sparse"] = jax.nn.relu(_linear(hidden_BLD, heads["sparse"]))[..., 0]
    if "multi_vector" in heads:
        outputs["multi_vector"] = normalize_vectors(_linear(hidden_BLD, heads["multi_vector"]))
    return outputs


def _linear(hidden_BLD: jax.Array, head: Params) -> jax.Array:
    hidden_BLD = hidden_BLD.astype(jnp.float32)
    # TPUs must not round float32 operands here.
    return (
        jnp.matmul(hidden_BLD, head["kernel"], precision=jax.lax.Precision.HIGHEST) + head["bias"]
    )
