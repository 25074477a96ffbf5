"""Computes prompt tuning: trained embeddings in front of the text's.

The parameter is `prompt` [n, E], under the path of the word embeddings. It starts from random
values, or from the embeddings of tokens (Lester et al. 2021, section 3.2; peft's `TEXT`).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.adapters.config import PromptTuning
from bert_jax.models.adapters.modules import (
    WORD_EMBEDDINGS,
    Implementation,
    Leaves,
    Modules,
    Shapes,
    replace_submodule,
    submodule,
)
from bert_jax.models.config import TransformerConfig
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.heads.config import reads_one_vector


def _prompt_shapes(method: PromptTuning, modules: Modules, config: TransformerConfig) -> Shapes:
    check_prompt_length(method.length, config)
    vocab_size = modules[WORD_EMBEDDINGS]["embedding"].shape[0]
    largest = max(method.initial_ids, default=0)
    if largest >= vocab_size:
        raise ConfigError(
            f"train.tuning.method.initial_ids contains {largest}, but the model has {vocab_size:,} "
            "tokens; expected ids of its tokenizer"
        )
    return {WORD_EMBEDDINGS: {"prompt": (method.length, config.word_embedding_size)}}


def _init_prompt(
    method: PromptTuning, shapes: Mapping[str, tuple[int, ...]], key: jax.Array
) -> dict[str, jax.Array]:
    del method
    # The standard deviation of BERT's embeddings; `torch.nn.Embedding`, as in peft, has 1.
    return {name: 0.02 * jax.random.normal(key, shape) for name, shape in shapes.items()}


def _start_from_tokens(method: PromptTuning, adapter: Leaves, base: Leaves) -> dict[str, Any]:
    if not method.initial_ids:
        return dict(adapter)
    ids = np.resize(np.array(method.initial_ids), method.length)
    return {"prompt": base["embedding"][ids].astype(np.float32)}


def _install_prompt(method: PromptTuning, network: Any, adapter: Modules) -> None:
    table = PromptEmbeddings(submodule(network, WORD_EMBEDDINGS), adapter[WORD_EMBEDDINGS])
    replace_submodule(network, WORD_EMBEDDINGS, table)
    # A head that reads the first token reads the first vector of the prompt, as in peft.
    head = network.task_head
    reads_first = head is not None and reads_one_vector(head)
    reads_first = reads_first and network.config.sequence_pooling == "first_token"
    network.encoder = PromptEncoder(network.encoder, method.length, reads_first=reads_first)


class PromptEmbeddings(nnx.Module):
    """Looks up embeddings of tokens, the first of which are replaced by the prompt's."""

    def __init__(self, base: Any, leaves: Leaves):
        self.base, self.prompt = base, nnx.Param(leaves["prompt"])

    @property
    def embedding(self) -> Any:
        """Returns the table of the base, [V, E]."""
        return self.base.embedding

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Maps int32 [B, n + L] to float32 [B, n + L, E]; the first n ids are not read."""
        prompt = self.prompt[...]
        length, width = prompt.shape[-2:]
        prompt = jnp.broadcast_to(prompt, (ids.shape[0], length, width)).astype(jnp.float32)
        return jnp.concatenate([prompt, self.base(ids[:, length:])], axis=1)


# A classifier reads the first virtual token, as in peft.
class PromptEncoder(nnx.Module):
    """Encodes the prompt and the text, and returns the hidden states of the text.

    Positions count from the first vector of the prompt, whose token type is 0.

    Attributes:
      reads_first: whether the state of the first token of the text is replaced by that of the first
        vector of the prompt.
    """

    def __init__(self, base: Any, length: int, *, reads_first: bool):
        self.base, self.length, self.reads_first = base, length, reads_first

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        **options: Any,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] fields; see `Encoder` in `models/encoder.py` for the arguments."""
        refuse_packing("PromptTuning", position_ids, packing_ids, options)
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        # The first id of a text is no padding, by which RoBERTa would recognize empty positions.
        first_ids = jnp.repeat(input_ids[:, :1], self.length, axis=1)
        output = self.base(
            jnp.concatenate([first_ids, input_ids], axis=1),
            jnp.concatenate([jnp.zeros_like(first_ids), token_type_ids], axis=1),
            jnp.concatenate([jnp.ones_like(first_ids), attention_mask], axis=1),
            **options,
        )
        return EncoderOutput(
            self._of_text(output.last_hidden_state),
            tuple(map(self._of_text, output.hidden_states)),
            output.attentions,
        )

    def _of_text(self, hidden: jax.Array) -> jax.Array:
        if not self.reads_first:
            return hidden[:, self.length :]
        return jnp.concatenate([hidden[:, :1], hidden[:, self.length + 1 :]], axis=1)

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, E]."""
        return self.base.token_embeddings()


IMPLEMENTATION = Implementation(
    _prompt_shapes, _init_prompt, _install_prompt, from_base=_start_from_tokens
)


def check_prompt_length(length: int, config: TransformerConfig) -> None:
    """Raises ConfigError if the trained vectors leave no position for a text."""
    # A text has at least two special tokens and one token.
    if length + 3 > config.max_length:
        raise ConfigError(
            f"train.tuning.method.length is {length}, which leaves no room for text: the model has "
            f"positions for {config.max_length} tokens; expected at most {config.max_length - 3}"
        )


def refuse_packing(
    method: str,
    position_ids: jax.Array | None,
    packing_ids: jax.Array | None,
    options: Mapping[str, Any],
) -> None:
    """Raises ConfigError for inputs whose positions or tokens the method cannot extend."""
    if position_ids is not None or packing_ids is not None:
        raise ConfigError(
            f"train.tuning.method is {method}, which has no packed sequences and no position_ids; "
            "expected data without packing, or another method, such as LoRA"
        )
    if options.get("global_attention_mask") is not None:
        raise ConfigError(
            f"train.tuning.method is {method}, which is not implemented for models with global "
            "attention; expected another method, such as LoRA"
        )
