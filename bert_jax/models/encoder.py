"""Defines the interface of encoders, and which configs of encoders and encoder-decoders exist.

`models/families.py` lists what each family provides. This module imports no jax, because configs
name the two unions.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bigbird.config import BigBirdConfig
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.esm.config import EsmConfig
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.gte.config import GteConfig
from bert_jax.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from bert_jax.models.led.config import LedConfig
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.modernbert_decoder.config import ModernBertDecoderConfig
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.nomic_bert.config import NomicBertConfig
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.models.t5.config import T5Config
from bert_jax.models.ultrabert.config import UltraBertConfig

if TYPE_CHECKING:
    import jax

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
    | ModernBertDecoderConfig
    | EuroBertConfig
    | EsmConfig
    | JinaEmbeddingsV3Config
    | GteConfig
    | NomicBertConfig
    | UltraBertConfig
)
"""The config of an encoder of any family.

Each class extends `TransformerConfig`, which `models/config.py` defines.
"""

EncoderDecoderConfig = T5Config | BartConfig | LedConfig
"""The config of an encoder-decoder of any family; each extends `Seq2SeqTransformerConfig`."""


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

    `TransformerEncoder`, the base class of the encoders here, has two more arguments. The first,
    `global_attention_mask`, is for families whose config returns `global_tokens` for some task:
    int32 [B, L], 1 = the token attends to all tokens of its sequence or packed example, and they
    attend to it; None for none of these tokens. The second, `selection`, is for those whose config
    `drops_tokens`: a `TokenSelection` of `models/layers/stack.py`, or None for all tokens.
    """

    def __call__(
        self,
        input_ids: "jax.Array",
        token_type_ids: "jax.Array | None" = None,
        attention_mask: "jax.Array | None" = None,
        *,
        position_ids: "jax.Array | None" = None,
        packing_ids: "jax.Array | None" = None,
        causal: "bool | jax.Array" = False,
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
          causal: whether a token attends only to itself and the tokens before it; bool [B] if not
            in all sequences.
          dropout_key: None to apply no dropout.
        """
        ...

    def token_embeddings(self) -> "jax.Array":
        """Returns the table of token embeddings, [V, E]."""
        ...
