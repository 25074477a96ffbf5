"""Lists the variable names of Google's original ELECTRA checkpoints by parameter path.

A checkpoint has the discriminator and the generator, whose embeddings are stored once. Kernels are
[in, out], as here. The release has no config file, so sizes are read from the variables.
"""

import re
from collections.abc import Mapping, Sequence

from bert_jax.models.bert.tf1 import dense_names, embedding_names, layer_names, norm_names
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_EMBEDDINGS = "electra/embeddings"
_HEAD_WIDTH = 64  # of all released models; `get_generator_config` of the original code has it, too
_NOT_PARAMETERS = [
    Ignored("**/adam_m", "first moments of the optimizer"),
    Ignored("**/adam_v", "second moments of the optimizer"),
    Ignored("global_step", "number of updates made"),
]


def _encoder_names(scope: str) -> list[NameMapping]:
    return [
        *embedding_names(_EMBEDDINGS),
        *dense_names("encoder/embedding_projection", f"{scope}/embeddings_project"),
        *layer_names(f"{scope}/encoder/layer_*"),
    ]


DISCRIMINATOR = NameTable(
    "Google TF1 ELECTRA, discriminator",
    [
        *_encoder_names("electra"),
        *dense_names("replaced_token/dense", "discriminator_predictions/dense"),
        *dense_names("replaced_token/output", "discriminator_predictions/dense_1"),
    ],
    [
        *_NOT_PARAMETERS,
        Ignored("generator/**/kernel", "a layer of the generator"),
        Ignored("generator/**/bias", "a layer of the generator"),
        Ignored("generator/**/gamma", "a norm of the generator"),
        Ignored("generator/**/beta", "a norm of the generator"),
        Ignored("generator_predictions/dense/*", "the head of the generator"),
        Ignored("generator_predictions/LayerNorm/*", "the head of the generator"),
        Ignored("generator_predictions/output_bias", "the head of the generator"),
    ],
    separator="/",
)

GENERATOR = NameTable(
    "Google TF1 ELECTRA, generator",
    [
        *_encoder_names("generator"),
        *dense_names("masked_lm/transform", "generator_predictions/dense"),
        *norm_names("masked_lm/norm", "generator_predictions/LayerNorm"),
        NameMapping("masked_lm/bias", "generator_predictions/output_bias"),
    ],
    [
        *_NOT_PARAMETERS,
        *(
            Ignored(f"electra/{module}/**/{name}", "a layer of the discriminator")
            for module in ("encoder", "embeddings_project")
            for name in ("kernel", "bias", "gamma", "beta")
        ),
        Ignored("discriminator_predictions/*/*", "the head of the discriminator"),
    ],
    separator="/",
)


def is_electra(shapes: Mapping[str, Sequence[int]]) -> bool:
    """Returns whether a checkpoint with variables of these names is ELECTRA's."""
    return f"{_EMBEDDINGS}/word_embeddings" in shapes


def config_from_shapes(shapes: Mapping[str, Sequence[int]], scope: str) -> ElectraConfig:
    """Returns the config of a network whose layers are under `scope`, from its variables' shapes.

    Args:
      scope: "electra" for the discriminator, "generator" for the generator.

    Raises:
      KeyError: the checkpoint lacks a variable that has a size; the argument is its name.
    """
    vocab_size, embedding_size = shapes[f"{_EMBEDDINGS}/word_embeddings"]
    first_layer = f"{scope}/encoder/layer_0"
    hidden_size, intermediate_size = shapes[f"{first_layer}/intermediate/dense/kernel"]
    layers = {
        match[1] for name in shapes if (match := re.match(rf"{scope}/encoder/layer_(\d+)/", name))
    }
    return ElectraConfig(
        vocab_size=vocab_size,
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        num_hidden_layers=len(layers),
        num_attention_heads=max(1, hidden_size // _HEAD_WIDTH),
        intermediate_size=intermediate_size,
        positions=LearnedPositions(
            max_position_embeddings=shapes[f"{_EMBEDDINGS}/position_embeddings"][0]
        ),
        type_vocab_size=shapes[f"{_EMBEDDINGS}/token_type_embeddings"][0],
    )
