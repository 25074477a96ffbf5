"""Chooses what makes the vectors of an encoder of texts that is trained."""

import dataclasses
import string

from bert_jax.config.embedding_losses import (
    AdaptiveLayerLoss,
    EmbedDistillLoss,
    MaxSimRankingLoss,
    SentenceLoss,
    SpladeLoss,
    layer_loss,
)
from bert_jax.errors import ConfigError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.sentence_encoder.config import (
    Dense,
    EmbeddingConfig,
    MultiVectorEncoderConfig,
    Normalize,
    PoolingMode,
    Prompt,
    QueryExpansion,
    SentenceEncoderConfig,
    SparseEncoderConfig,
)
from bert_jax.pretrained.embedding_model import embedding_model_of, sentence_model_of
from bert_jax.pretrained.load import LoadedModel
from bert_jax.text.tokenizer import Tokenizer

COLBERT_DIM, COLBERT_QUERY_LENGTH = 128, 32
"""The components of a vector, and the tokens of a query, of ColBERT and PyLate."""
_COLBERT_PREFIXES = {"query": "[unused0]", "document": "[unused1]"}


def choose_embedding_config(
    loss: SentenceLoss,
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    sentence_encoder: EmbeddingConfig | None,
    pooling: PoolingMode | None,
    has_static_queries: bool,
) -> tuple[EmbeddingConfig, SentenceLoss]:
    """Returns what makes vectors, and the loss for it.

    Args:
      loaded: the model to start from.
      sentence_encoder: what makes vectors; None: as in the model if it has vectors of the kind that
        the loss needs, otherwise a default.
      pooling: replaces the pooling of a dense model; None to change nothing.
      has_static_queries: whether queries of a sparse model get a weight for each token; their
        regularization is left out.

    A loss of a teacher's vectors gets a layer for them if they have another size.

    Raises:
      ConfigError: `pooling` or `has_static_queries` is for another kind of vectors.
    """
    config = sentence_encoder or _default_config(loss, loaded, tokenizer)
    if pooling is not None:
        if not isinstance(config, SentenceEncoderConfig):
            raise ConfigError(
                f"pooling is {pooling!r}, but {type(loss).__name__} does not train a model with "
                "one dense vector for each text; remove --pooling"
            )
        config = dataclasses.replace(config, pooling=(pooling,))
    of_layer = layer_loss(loss)
    if isinstance(of_layer, EmbedDistillLoss) and of_layer.projection_size is None:
        of_layer = _with_projection(of_layer, config, loaded.config.hidden_size)
        is_adaptive = isinstance(loss, AdaptiveLayerLoss)
        loss = dataclasses.replace(loss, loss=of_layer) if is_adaptive else of_layer
    if has_static_queries:
        if not isinstance(config, SparseEncoderConfig) or not isinstance(loss, SpladeLoss):
            raise ConfigError("static queries belong to sparse models; expected --loss splade")
        config = dataclasses.replace(config, has_static_queries=True)
        loss = dataclasses.replace(loss, query_regularizer_weight=0.0)
    return config, loss


def _with_projection(
    loss: EmbedDistillLoss, config: EmbeddingConfig, hidden_size: int
) -> EmbedDistillLoss:
    """Returns the loss with a layer to the vectors of the teacher if they have another size."""
    # Imported here, so that a run without a teacher loads no model readers.
    from bert_jax.predict.embedder import Embedder
    from bert_jax.pretrained.load import load_encoder

    size = Embedder(load_encoder(loss.teacher)).embedding_size
    own_size = isinstance(config, SentenceEncoderConfig) and config.embedding_size(hidden_size)
    return loss if size == own_size else dataclasses.replace(loss, projection_size=size)


def _default_config(
    loss: SentenceLoss, loaded: LoadedModel, tokenizer: Tokenizer
) -> EmbeddingConfig:
    """Returns the config of the model if it has the loss's kind of vectors, else a default."""
    match loss:
        case SpladeLoss():
            config = embedding_model_of(loaded).config
            return config if isinstance(config, SparseEncoderConfig) else SparseEncoderConfig()
        case MaxSimRankingLoss():
            config = embedding_model_of(loaded).config
            if isinstance(config, MultiVectorEncoderConfig):
                return config
            return colbert_config(tokenizer, loaded.config)
        case _:
            return sentence_model_of(loaded).config


def colbert_config(tokenizer: Tokenizer, model: EncoderConfig) -> MultiVectorEncoderConfig:
    """Returns the settings of ColBERT (Khattab and Zaharia 2020) for a model that is no ColBERT.

    That is a projection to 128 components, queries of 32 tokens with masks at the end, no vectors
    for punctuation in documents, and the unused tokens of BERT's vocabulary as prefixes, if the
    vocabulary has them.
    """
    has_prefixes = all(token in tokenizer for token in _COLBERT_PREFIXES.values())
    ids = {tokenizer.token_to_id(mark) for mark in string.punctuation if mark in tokenizer}
    dense = Dense(
        in_features=model.hidden_size,
        out_features=min(COLBERT_DIM, model.hidden_size),
        bias=False,
        activation=None,
    )
    return MultiVectorEncoderConfig(
        modules=(dense, Normalize()),
        expansion=QueryExpansion(
            length=min(COLBERT_QUERY_LENGTH, model.max_length), token_id=tokenizer.mask_id
        ),
        has_prefix_tokens=True,
        prompts=tuple(
            Prompt(name=name, text=token if has_prefixes else "")
            for name, token in _COLBERT_PREFIXES.items()
        ),
        skip_token_ids=tuple(sorted(ids)),
    )
