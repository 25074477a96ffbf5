"""Makes a Longformer from a pretrained model with learned positions, such as BERT or RoBERTa.

As in `scripts/convert_model_to_long.ipynb` of Longformer's release: the rows of the position table
are copied until the table is long enough, and the projections of global attention start as copies
of the local ones. The model then needs some pretraining on long texts: the paper used 65,000 steps
of 2^18 tokens, the notebook 3,000.
"""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers.config import NoPositions, PaddingOffsetPositions
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.parameters import missing_heads, validate_params
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel

_POSITIONS = "encoder/embeddings/position_embeddings/embedding"
_TOKEN_TYPES = "encoder/embeddings/token_type_embeddings/embedding"
_PARTS = ("encoder", "pooler", "masked_lm")


def make_longformer(
    model: LoadedModel, *, max_length: int = 4096, attention_window: int = 512
) -> LoadedModel:
    """Returns a Longformer with the weights of a pretrained model; its task heads are left out.

    Args:
      max_length: the length of the longest sequence in tokens, special tokens included.
      attention_window: the number of tokens in the window of every layer, an even number.

    Raises:
      UserError: the model's layers are not BERT's, it is fine-tuned, or it is as long already.
      ConfigError: a window that does not fit.
    """
    source = model.config
    if isinstance(source.positions, NoPositions):
        raise UserError(
            f"{model.path}: {source.family} has no learned positions to copy; expected a model "
            "such as BERT or RoBERTa"
        )
    if model.head is not None:
        raise UserError(
            f"{model.path} is fine-tuned for a task, whose head does not fit a Longformer; convert "
            "the pretrained model, then fine-tune the result"
        )
    if max_length < source.max_length:
        raise UserError(
            f"the length of the Longformer is {max_length}, but {model.path} takes "
            f"{source.max_length} tokens already; expected at least as many"
        )
    flat = {
        path: leaf
        for path, leaf in paths.flatten(model.params).items()
        if path.split("/")[0] in _PARTS
    }
    if "masked_lm/bias" in flat and source.masked_lm_activation != "gelu":
        raise UserError(
            f"{model.path}: the masked-LM head has the activation {source.masked_lm_activation}, "
            "but Longformer's has the exact GELU"
        )
    config = _longformer_config(model, max_length, attention_window)
    flat |= _global_projections(flat)
    if _POSITIONS in flat:
        flat[_POSITIONS] = _repeated_positions(flat[_POSITIONS], source, config)
    # Longformer's class has a table of token types; a row of zeros adds nothing.
    flat.setdefault(_TOKEN_TYPES, np.zeros((1, source.hidden_size), np.float32))
    validate_params(flat, config, f"{model.path} as a Longformer")
    return LoadedModel(
        params=paths.unflatten(flat),
        config=config,
        tokenizer=model.tokenizer,
        path=model.path,
        missing=missing_heads(flat, config),
    )


def _longformer_config(
    model: LoadedModel, max_length: int, attention_window: int
) -> LongformerConfig:
    source, tokenizer = model.config, model.tokenizer
    names = {field.name for field in dataclasses.fields(TransformerConfig)} - {"positions"}
    fields: dict[str, Any] = {name: getattr(source, name) for name in names}
    fields["type_vocab_size"] = max(source.type_vocab_size, 1)
    if isinstance(source.positions, PaddingOffsetPositions):
        pad_token_id = source.positions.pad_token_id
    else:
        pad_token_id = tokenizer.pad_id if tokenizer else 0
    return LongformerConfig(
        **fields,
        positions=PaddingOffsetPositions(
            max_position_embeddings=max_length + pad_token_id + 1, pad_token_id=pad_token_id
        ),
        attention_window=(attention_window,) * source.num_hidden_layers,
        sep_token_id=tokenizer.sep_id if tokenizer else LongformerConfig.sep_token_id,
    )


def _global_projections(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns copies of the queries, keys and values of all layers for the global tokens."""
    return {
        # As in Beltagy et al. 2020: the projections of global attention start as those of local
        # attention.
        path.replace(f"/attention/{name}/", f"/attention/{name}_global/"): leaf.copy()
        for path, leaf in flat.items()
        for name in ("query", "key", "value")
        if f"/attention/{name}/" in path
    }


def _repeated_positions(
    table: np.ndarray, source: TransformerConfig, config: LongformerConfig
) -> np.ndarray:
    """Returns the table of the Longformer: the rows of real tokens again and again."""
    offset = source.max_length - len(table)  # minus the number of rows before the first token
    used = table[-offset:] if offset else table
    unused = np.zeros((config.positions.offset, table.shape[1]), table.dtype)
    if offset == -len(unused):
        unused = table[:-offset]
    # Copied again and again, because attention of the first layers depends on near positions,
    # which copies keep (Beltagy et al. 2020).
    copies = -(-config.max_length // len(used))
    return np.concatenate([unused, np.tile(used, (copies, 1))[: config.max_length]])
