"""Describes DistilBERT's Hugging Face format: config.json fields and tensor names.

DistilBERT has names of its own for most fields and tensors.
"""

import functools

from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    BlockNames,
    HuggingFaceFormat,
    MaskedLMNames,
    ReadField,
    TyingTables,
    block_names,
    canonical_name,
    dense_names,
    embedding_names,
    read_transformer_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, LearnedPositions
from bert_jax.params.name_table import NameTable

_MASKED_LM = MaskedLMNames(
    token_embeddings="distilbert.embeddings.word_embeddings.weight",
    decoder="vocab_projector.weight",
    bias="vocab_projector.bias",
    decoder_bias="vocab_projector.bias",
    transform="vocab_transform",
    norm="vocab_layer_norm",
)
_FIELD_NAMES: dict[str, str | None] = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "type_vocab_size": None,
    "layer_norm_eps": None,
}
_BLOCK = BlockNames(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    intermediate="ffn.lin1",
    output="ffn.lin2",
    output_norm="output_layer_norm",
)
_NAMES = [
    *embedding_names("distilbert", ("word_embeddings", "position_embeddings")),
    *block_names("encoder/layers/*", "distilbert.transformer.layer.*", _BLOCK),
    *dense_names("span", "qa_outputs"),
]
# The tensor "classifier.weight" is the whole head of a tagger, and the last layer of the other
# heads.
_TOKEN_CLASSIFIER = dense_names("classifier", "classifier")
_SEQUENCE_CLASSIFIER = [
    *dense_names("classifier/dense", "pre_classifier"),
    *dense_names("classifier/out_proj", "classifier"),
]


@functools.cache
def _tables(*, token_classifier: bool) -> TyingTables:
    return tying_tables(
        "Hugging Face DistilBERT",
        "distilbert",
        [*_NAMES, *(_TOKEN_CLASSIFIER if token_classifier else _SEQUENCE_CLASSIFIER)],
        _MASKED_LM,
    )


def names(config: DistilBertConfig, head: TaskHead | None) -> NameTable:
    """Returns the table of tensor names of a model with a task head, or without one."""
    return _tables(token_classifier=head is not None and head.scope == "tokens").names(config)


def _read_config(activation: Activation, read: ReadField) -> DistilBertConfig:
    # `sinusoidal_pos_embds` is not read: it initializes the position table, which the file has.
    return DistilBertConfig(
        positions=LearnedPositions(max_position_embeddings=read("max_position_embeddings", 512)),
        hidden_act=activation,
        **read_transformer_fields(read, _FIELD_NAMES),
    )


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"distilbert": "DistilBert"},
    heads={"Model": (), "ForMaskedLM": ("masked_lm",)},
    fixed_fields=FIXED_FIELDS,
    read_config=_read_config,
    config_fields=lambda config: {},
    field_names=_FIELD_NAMES,
    names=names,
    canonical=functools.partial(canonical_name, prefix="distilbert"),
    masked_lm=_MASKED_LM,
)
