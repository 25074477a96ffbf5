"""Describes each family of encoders to the tests that compare it with transformers' classes.

A `Family` has two configs of small models and builds the same models in PyTorch. The fields of
transformers' configs are written out here, not exported, so that an error of the export is seen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bigbird.config import BigBirdConfig, BlockSparseWhenLong, FullAttention
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.esm.config import EsmConfig
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.gte.config import GteConfig
from bert_jax.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from bert_jax.models.layers.config import (
    LearnedPositions,
    NoPositions,
    PaddingOffsetPositions,
    RotaryPositions,
)
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.nomic_bert.config import NomicBertConfig
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.models.ultrabert.config import UltraBertConfig
from tests.helpers.torch_parity import HEADS, randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ENCODER: tuple[str, ...] = ()
MASKED_LM = ("masked_lm",)
POOLINGS = {"first_token": "cls", "mean": "mean"}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Describes a family.

    Attributes:
      prefix: (config) -> the beginning of the names of transformers' classes.
      small, medium: configs of two sizes.
      fields: (config) -> the fields of transformers' config.
      parts: the end of a class name without a task head -> what its weights have besides the
        encoder.
      seq_lengths: lengths of the compared sequences in both sizes; None for the longest.
      heads: the names in `HEADS` of the task heads whose folders are compared with random batches.
      head_seq_length: the length of sequences for task heads of the second size.
      pad_token_id: the id of padding.
      std: the standard deviation of the random parameters.
      prepare: changes a model after its parameters are drawn.
    """

    prefix: Callable[[Any], str]
    small: Any
    medium: Any
    fields: Callable[[Any], Mapping[str, Any]]
    parts: Mapping[str, tuple[str, ...]]
    seq_lengths: tuple[int | None, int | None] = (None, None)
    heads: tuple[str, ...] = tuple(HEADS)
    head_seq_length: int | None = None
    pad_token_id: int = 0
    std: float = 0.05
    prepare: Callable[[Any], None] = lambda model: None

    def torch_model(self, config: Any, name: str, seed: int = 0, **fields: Any) -> Any:
        """Builds a model of transformers in which every parameter is random.

        Args:
          name: the end of the class name, such as "ForMaskedLM".
          fields: further fields of the config.
        """
        prefix = self.prefix(config)
        hf_config = getattr(transformers, f"{prefix}Config")(**self.fields(config), **fields)
        model = getattr(transformers, f"{prefix}{name}")(hf_config)
        randomize_parameters(model, std=self.std, seed=seed)
        self.prepare(model)
        return model


def size_fields(config: Any) -> dict[str, Any]:
    """Returns the fields of the sizes, which most configs of transformers have."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.positions.max_position_embeddings,
        "attn_implementation": "eager",
    }


def bert_fields(config: Any) -> dict[str, Any]:
    """Returns the fields that the configs of BERT's descendants have."""
    return {
        **size_fields(config),
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_act": "gelu_new" if config.hidden_act == "gelu_tanh" else "gelu",
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
    }


def _albert_fields(config: AlbertConfig) -> dict[str, Any]:
    return {
        **bert_fields(config),
        "embedding_size": config.embedding_size,
        "num_hidden_groups": config.num_hidden_groups,
        "inner_group_num": config.inner_group_num,
    }


def _bigbird_fields(config: BigBirdConfig) -> dict[str, Any]:
    attention = config.attention
    fields = bert_fields(config)
    if isinstance(attention, FullAttention):
        return {**fields, "attention_type": "original_full"}
    return {
        **fields,
        "block_size": attention.block_size,
        "num_random_blocks": attention.num_random_blocks,
    }


def _deberta_fields(config: DebertaV2Config) -> dict[str, Any]:
    return {
        **bert_fields(config),
        "relative_attention": True,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "position_buckets": config.position_buckets,
        "max_relative_positions": config.max_relative_positions,
    }


def _distilbert_fields(config: DistilBertConfig) -> dict[str, Any]:
    activations = {"relu": "relu", "gelu_tanh": "gelu_new"}
    return {
        "vocab_size": config.vocab_size,
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "hidden_dim": config.intermediate_size,
        "max_position_embeddings": config.positions.max_position_embeddings,
        "activation": activations.get(config.hidden_act, "gelu"),
        "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "attn_implementation": "eager",
    }


def _esm_fields(config: EsmConfig) -> dict[str, Any]:
    fields = {
        **bert_fields(config),
        "position_embedding_type": "rotary",
        "emb_layer_norm_before": False,
        "token_dropout": config.token_dropout,
        "mask_token_id": config.mask_token_id,
        "pad_token_id": 1,
    }
    del fields["hidden_act"]  # it has only one
    return fields


def _eurobert_fields(config: EuroBertConfig) -> dict[str, Any]:
    poolings = {**POOLINGS, "first_token": "bos", "late": "late"}
    return {
        **size_fields(config),
        "num_key_value_heads": config.num_key_value_heads,
        "hidden_act": "gelu" if config.hidden_act == "gelu" else "silu",
        "rms_norm_eps": config.layer_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "classifier_pooling": poolings[config.classifier_pooling],
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _longformer_fields(config: LongformerConfig) -> dict[str, Any]:
    fields = {
        **size_fields(config),
        "type_vocab_size": config.type_vocab_size,
        "layer_norm_eps": config.layer_norm_eps,
        "attention_window": list(config.attention_window),
        "max_global_tokens": config.max_global_tokens,
    }
    del fields["attn_implementation"]  # it has only its own
    return fields


def _modernbert_fields(config: ModernBertConfig) -> dict[str, Any]:
    return {
        **size_fields(config),
        "layer_types": list(config.layer_types),
        "local_attention": config.local_attention,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.global_rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
        "classifier_pooling": POOLINGS[config.classifier_pooling],
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    }


def _ultrabert_fields(config: UltraBertConfig) -> dict[str, Any]:
    return {
        **size_fields(config),
        "num_key_value_heads": config.num_key_value_heads,
        "hidden_act": "gelu" if config.hidden_act == "gelu" else "silu",
        "rms_norm_eps": config.layer_norm_eps,
        "layer_types": list(config.layer_types),
        "sliding_window": config.sliding_window,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.global_rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
        "prediction_head_size": config.prediction_head_size,
        "classifier_pooling": POOLINGS[config.classifier_pooling],
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def rotary_fields(config: Any) -> dict[str, Any]:
    """Returns the fields of BERT's descendants with rotary positions."""
    return {
        **bert_fields(config),
        "hidden_act": "gelu_new" if config.hidden_act == "gelu_tanh" else config.hidden_act,
        "type_vocab_size": config.type_vocab_size,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.positions.rope_theta},
    }


def _enlarge_relative_bias(model: Any) -> None:
    for module in model.modules():
        if type(module).__name__ == "MPNetEncoder":  # a bias of usual size changes little
            with torch.no_grad():
                module.relative_attention_bias.weight.mul_(20.0)


def _small(num_hidden_layers: int = 2, num_attention_heads: int = 3) -> dict[str, Any]:
    return {
        "vocab_size": 103,
        "hidden_size": 48,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads,
        "intermediate_size": 70,
    }


def _medium(
    hidden_size: int = 128, num_hidden_layers: int = 2, intermediate_size: int = 512
) -> dict[str, Any]:
    return {
        "vocab_size": 300,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": 4,
        "intermediate_size": intermediate_size,
    }


_ROBERTA_PREFIXES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}

FAMILIES: dict[str, Family] = {
    "albert": Family(
        prefix=lambda config: "Albert",
        # The layers of all groups differ.
        small=AlbertConfig(
            **_small(num_hidden_layers=3),
            embedding_size=20,
            num_hidden_groups=2,
            inner_group_num=2,
            positions=LearnedPositions(max_position_embeddings=42),
        ),
        # Hugging Face maps the embeddings to the hidden size also if the sizes are equal.
        medium=AlbertConfig(
            **_medium(),
            embedding_size=128,
            hidden_act="gelu",
            positions=LearnedPositions(max_position_embeddings=64),
        ),
        fields=_albert_fields,
        parts={"Model": ("pooler",), "ForMaskedLM": MASKED_LM},
    ),
    # Batches of 24 tokens have 12 blocks of 2 tokens; up to 11 blocks, attention is full.
    "bigbird": Family(
        prefix=lambda config: "BigBird",
        small=BigBirdConfig(
            **_small(),
            positions=LearnedPositions(max_position_embeddings=128),
            attention=BlockSparseWhenLong(block_size=2),
        ),
        medium=BigBirdConfig(
            **_small(),
            positions=LearnedPositions(max_position_embeddings=128),
            attention=FullAttention(),
        ),
        fields=_bigbird_fields,
        heads=("sequence", "choice", "regression", "token"),
        parts={"Model": ("pooler",), "ForMaskedLM": ("pooler", "masked_lm")},
    ),
    # 4 exact distances in each direction, and logarithmic buckets up to distance 40.
    "deberta_v2": Family(
        prefix=lambda config: "DebertaV2",
        small=DebertaV2Config(
            **_small(),
            positions=NoPositions(max_position_embeddings=40),
            position_buckets=8,
            max_relative_positions=40,
        ),
        medium=DebertaV2Config(
            **_medium(),
            positions=NoPositions(max_position_embeddings=300),
            position_buckets=64,
            max_relative_positions=128,
            hidden_act="gelu_tanh",
            hidden_dropout_prob=0.2,
        ),
        fields=_deberta_fields,
        parts={"Model": ENCODER, "ForMaskedLM": MASKED_LM},
        seq_lengths=(40, 200),
        head_seq_length=96,
        std=0.1,
    ),
    "distilbert": Family(
        prefix=lambda config: "DistilBert",
        small=DistilBertConfig(**_small(), positions=LearnedPositions(max_position_embeddings=40)),
        medium=DistilBertConfig(
            **_medium(),
            positions=LearnedPositions(max_position_embeddings=64),
            hidden_act="relu",
            hidden_dropout_prob=0.2,
        ),
        fields=_distilbert_fields,
        parts={"Model": ENCODER, "ForMaskedLM": MASKED_LM},
    ),
    # "small" has embeddings narrower than the layers, as ELECTRA-small and every generator.
    "electra": Family(
        prefix=lambda config: "Electra",
        small=ElectraConfig(
            **_small(),
            embedding_size=20,
            positions=LearnedPositions(max_position_embeddings=40),
        ),
        medium=ElectraConfig(
            **_medium(),
            embedding_size=128,
            positions=LearnedPositions(max_position_embeddings=64),
            hidden_act="gelu_tanh",  # not that of the masked-LM head, nor of the classifiers
        ),
        fields=lambda config: {**bert_fields(config), "embedding_size": config.embedding_size},
        parts={"Model": ENCODER, "ForPreTraining": ("replaced_token",), "ForMaskedLM": MASKED_LM},
    ),
    # The mask of random batches, so that token dropout scales each sequence by another factor.
    "esm": Family(
        prefix=lambda config: "Esm",
        small=EsmConfig(
            **_small(),
            positions=NoPositions(max_position_embeddings=40),
            mask_token_id=4,
        ),
        medium=EsmConfig(
            **_medium(num_hidden_layers=3),
            positions=NoPositions(max_position_embeddings=200),
            mask_token_id=4,
            layer_norm_eps=1e-6,
            hidden_dropout_prob=0.2,
        ),
        fields=_esm_fields,
        heads=("sequence", "token"),
        parts={"Model": ("pooler",), "ForMaskedLM": MASKED_LM},
        pad_token_id=1,
    ),
    "eurobert": Family(
        prefix=lambda config: "EuroBert",
        small=EuroBertConfig(
            **_small(num_hidden_layers=3, num_attention_heads=4),
            num_key_value_heads=2,
            positions=NoPositions(max_position_embeddings=40),
        ),
        medium=EuroBertConfig(
            **_medium(num_hidden_layers=4, intermediate_size=192),
            num_key_value_heads=4,
            hidden_act="gelu",
            positions=NoPositions(max_position_embeddings=200),
            layer_norm_eps=1e-6,
            rope_theta=10_000.0,
            classifier_pooling="mean",
        ),
        fields=_eurobert_fields,
        heads=("sequence", "token"),
        parts={"Model": ENCODER, "ForMaskedLM": MASKED_LM},
    ),
    "longformer": Family(
        prefix=lambda config: "Longformer",
        small=LongformerConfig(
            **_small(),
            positions=PaddingOffsetPositions(max_position_embeddings=42),
            attention_window=(4, 8),
        ),
        medium=LongformerConfig(
            **_medium(hidden_size=64, intermediate_size=96),
            positions=PaddingOffsetPositions(max_position_embeddings=514),
            attention_window=(16, 16),
            max_global_tokens=20,
        ),
        fields=_longformer_fields,
        heads=(),
        parts={"Model": ("pooler",), "ForMaskedLM": MASKED_LM},
        pad_token_id=1,
    ),
    # The windows are narrower than the sequences, so that local layers differ from global ones.
    "modernbert": Family(
        prefix=lambda config: "ModernBert",
        small=ModernBertConfig(
            **_small(num_hidden_layers=4),
            positions=NoPositions(max_position_embeddings=64),
            local_attention=8,
        ),
        medium=ModernBertConfig(
            **_medium(num_hidden_layers=4, intermediate_size=192),
            positions=NoPositions(max_position_embeddings=300),
            layer_types=(
                "sliding_attention",
                "full_attention",
                "full_attention",
                "sliding_attention",
            ),
            local_attention=24,
            global_rope_theta=40_000.0,
            local_rope_theta=160_000.0,
            classifier_pooling="first_token",
        ),
        fields=_modernbert_fields,
        parts={"Model": ENCODER, "ForMaskedLM": ("prediction_head", "masked_lm")},
        head_seq_length=40,
        seq_lengths=(40, 290),  # one block of local attention, and several
    ),
    "mpnet": Family(
        prefix=lambda config: "MPNet",
        small=MPNetConfig(**_small(), positions=PaddingOffsetPositions(max_position_embeddings=42)),
        medium=MPNetConfig(
            **_medium(),
            positions=PaddingOffsetPositions(max_position_embeddings=302),
            hidden_act="gelu_tanh",
            hidden_dropout_prob=0.2,
        ),
        fields=bert_fields,
        parts={"Model": ("pooler",), "ForMaskedLM": MASKED_LM},
        head_seq_length=160,
        seq_lengths=(24, 300),  # distances from 128 on are in the last bucket
        pad_token_id=1,
        prepare=_enlarge_relative_bias,
    ),
    "gte": Family(
        prefix=lambda config: "Gte",
        small=GteConfig(**_small(), positions=RotaryPositions(max_position_embeddings=40)),
        medium=GteConfig(
            **_medium(num_hidden_layers=3),
            positions=RotaryPositions(max_position_embeddings=200, rope_theta=160_000.0),
            type_vocab_size=0,  # as in gte-base-en-v1.5
            hidden_act="gelu_tanh",  # not that of the masked-LM head
            hidden_dropout_prob=0.2,
        ),
        fields=lambda config: {**rotary_fields(config), "pad_token_id": 1},
        heads=("sequence", "token"),
        parts={"Model": ENCODER, "ForMaskedLM": MASKED_LM},
        pad_token_id=1,
    ),
    "jina_embeddings_v3": Family(
        prefix=lambda config: "JinaEmbeddingsV3",
        small=JinaEmbeddingsV3Config(
            **_small(), positions=RotaryPositions(max_position_embeddings=40)
        ),
        medium=JinaEmbeddingsV3Config(
            **_medium(num_hidden_layers=3),
            positions=RotaryPositions(max_position_embeddings=200, rope_theta=20_000.0),
            type_vocab_size=2,
            hidden_dropout_prob=0.2,
        ),
        fields=rotary_fields,
        heads=("sequence", "regression", "token", "span"),
        parts={"Model": ("pooler",), "ForMaskedLM": MASKED_LM},
        pad_token_id=1,
    ),
    "nomic_bert": Family(
        prefix=lambda config: "NomicBert",
        small=NomicBertConfig(**_small(), positions=RotaryPositions(max_position_embeddings=40)),
        medium=NomicBertConfig(
            **_medium(num_hidden_layers=3),
            positions=RotaryPositions(max_position_embeddings=200, rope_theta=1000.0),
            hidden_act="gelu",
            hidden_dropout_prob=0.2,
        ),
        fields=rotary_fields,
        heads=("sequence", "token"),
        parts={"Model": ENCODER, "ForMaskedLM": MASKED_LM},
    ),
    "roberta": Family(
        prefix=lambda config: _ROBERTA_PREFIXES[config.model_type],
        small=RobertaConfig(
            **_small(), positions=PaddingOffsetPositions(max_position_embeddings=42)
        ),
        medium=RobertaConfig(
            **_medium(), positions=PaddingOffsetPositions(max_position_embeddings=66)
        ),
        fields=lambda config: {**bert_fields(config), "type_vocab_size": config.type_vocab_size},
        parts={"Model": ("pooler",), "ForMaskedLM": MASKED_LM},
        seq_lengths=(24, 24),
        pad_token_id=1,
    ),
    # The windows are narrower than the sequences, and both sizes have local and global layers.
    "ultrabert": Family(
        prefix=lambda config: "Ultrabert",
        small=UltraBertConfig(
            **_small(num_hidden_layers=4),
            num_key_value_heads=1,
            positions=NoPositions(max_position_embeddings=64),
            sliding_window=4,
            prediction_head_size=30,
        ),
        medium=UltraBertConfig(
            **_medium(num_hidden_layers=3, intermediate_size=192),
            num_key_value_heads=4,
            hidden_act="gelu",
            positions=NoPositions(max_position_embeddings=300),
            layer_types=("full_attention", "sliding_attention", "full_attention"),
            sliding_window=12,
            layer_norm_eps=1e-5,
            global_rope_theta=40_000.0,
            local_rope_theta=160_000.0,
            prediction_head_size=128,
            classifier_pooling="mean",
        ),
        fields=_ultrabert_fields,
        heads=("sequence", "regression", "token", "span"),
        parts={"Model": ENCODER, "ForMaskedLM": MASKED_LM},
        head_seq_length=40,
        seq_lengths=(40, 290),  # one block of local attention, and several
    ),
}
