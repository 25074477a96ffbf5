"""Defines which families of encoders exist, what each provides, and how one is built.

A family is a package `models/<family>/` with these modules, found next to its config's module:

    config.py        the config dataclass (no jax)
    model.py         `build_encoder(config, compute, rngs)`: a Flax module, see `Encoder`
    sharding.py      `PARAMETER_AXES`: rows (path pattern, logical axes) for its parameters
    huggingface.py   `HUGGING_FACE`: its names in Hugging Face's files, see `models/huggingface.py`

BERT's `model.py` and `sharding.py` serve a family that does not have such a module: its
encoder is BERT's with other values, as that of RoBERTa, DistilBERT and ELECTRA.
To add a family, write the package and add its config to `EncoderConfig` below. This module imports
no jax, because configs name `EncoderConfig`.
"""

import importlib
import importlib.util
import typing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bigbird.config import BigBirdConfig
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.roberta.config import RobertaConfig

if TYPE_CHECKING:
    import jax
    from flax import nnx

EncoderConfig = (
    BertConfig
    | RobertaConfig
    | AlbertConfig
    | BigBirdConfig
    | DistilBertConfig
    | ElectraConfig
    | LongformerConfig
    | MPNetConfig
    | DebertaV2Config
    | ModernBertConfig
    | EuroBertConfig
)
"""The config of an encoder of any family.

Each class extends `TransformerConfig`, which `models/config.py` defines.
"""

FAMILIES: tuple[type[Any], ...] = typing.get_args(EncoderConfig)
"""The config class of each family."""


class EncoderOutput(NamedTuple):
    """Holds what an encoder returns; field names are Hugging Face's.

    Attributes:
      last_hidden_state: [B, L, D].
      hidden_states: the input of the first layer and then the output of each layer, N + 1 arrays
        [B, L, D], where N is `num_applied_layers`; () unless `output_hidden_states`.
      attentions: the attention weights of each layer before dropout, N arrays float32 [B, H, L, L];
        () unless `output_attentions`.
    """

    last_hidden_state: "jax.Array"
    hidden_states: tuple["jax.Array", ...] = ()
    attentions: tuple["jax.Array", ...] = ()


class Encoder(Protocol):
    """Encodes token ids; an `nnx.Module` whose layer i has the parameter paths "layers/<i>/...".

    Groups of layers that share parameters have the paths "groups/<group>/layers/<i>/...".

    A family whose config returns `global_tokens` for some task has one more argument,
    `global_attention_mask`: int32 [B, L], or None for none of these tokens.
    """

    def __call__(
        self,
        input_ids: "jax.Array",
        token_type_ids: "jax.Array | None" = None,
        attention_mask: "jax.Array | None" = None,
        *,
        position_ids: "jax.Array | None" = None,
        packing_ids: "jax.Array | None" = None,
        causal: bool = False,
        dropout_key: "jax.Array | None" = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] fields, which `bert_jax/batch.py` describes.

        Args:
          token_type_ids: None for zeros.
          attention_mask: None if no token is padding.
          position_ids: positions from 0 within each packed example, in every family; None if rows
            are not packed.
          packing_ids: which packed example a token belongs to; None if rows are not packed.
          causal: whether a token attends only to itself and the tokens before it.
          dropout_key: None to apply no dropout.
        """
        ...

    def token_embeddings(self) -> "jax.Array":
        """Returns the table of token embeddings, [V, E]."""
        ...


def build_encoder(config: EncoderConfig, compute: ComputeConfig, rngs: "nnx.Rngs") -> Any:
    """Builds the encoder of a config as an `nnx.Module` with initialized parameters.

    Returns:
      The module, an `Encoder`. (`Any`, because no type is both a protocol and an `nnx.Module`.)
    """
    return family_module(type(config), "model").build_encoder(config, compute, rngs)


_BERT_MODULES = ("model", "sharding")


def family_module(config_class: type[Any], name: str) -> Any:
    """Imports a module of the family to which a config class belongs, such as "sharding".

    The modules "model" and "sharding" are BERT's for a family that does not define them.
    """
    package = config_class.__module__.rpartition(".")[0]
    if name in _BERT_MODULES and not importlib.util.find_spec(f"{package}.{name}"):
        package = BertConfig.__module__.rpartition(".")[0]
    return importlib.import_module(f"{package}.{name}")
