"""Lists the families of models: the network, the sharding and the file format of each.

A family is a package `models/<family>/` with these modules:

    config.py        the config dataclass (no jax)
    model.py         an encoder, see `Encoder` in `models/encoder.py`, and, unless they are
                     BERT's, `PARAMETER_AXES`: rows (path pattern, logical axes) for its parameters,
                     see `models/sharding.py`
    huggingface.py   `HUGGING_FACE`: its names in Hugging Face's files, see `models/huggingface.py`

RoBERTa, DistilBERT, ELECTRA and jina-embeddings-v3 have no `model.py`: their encoder is BERT's with
other settings. ModernBERT, its decoder, EuroBERT and UltraBERT have the encoder of
`models/pre_norm/`. Any other encoder is a `TransformerEncoder` (`models/layers/transformer.py`)
that composes the parts in `models/layers/`, and overrides what is different in the forward pass. To
add a family, write the package, add its config to `EncoderConfig` in `models/encoder.py`, and add a
row to `FAMILIES`. A family of encoder-decoders has a row in `ENCODER_DECODER_FAMILIES`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flax import nnx

from bert_jax.models.albert import huggingface as albert
from bert_jax.models.albert import model as albert_model
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bart import huggingface as bart
from bert_jax.models.bart import model as bart_model
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.bert import huggingface as bert
from bert_jax.models.bert import model as bert_model
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bigbird import huggingface as bigbird
from bert_jax.models.bigbird import model as bigbird_model
from bert_jax.models.bigbird.config import BigBirdConfig
from bert_jax.models.config import TransformerConfig
from bert_jax.models.deberta_v2 import huggingface as deberta_v2
from bert_jax.models.deberta_v2 import model as deberta_v2_model
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.distilbert import huggingface as distilbert
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.electra import huggingface as electra
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.encoder import EncoderConfig, EncoderDecoderConfig
from bert_jax.models.esm import huggingface as esm
from bert_jax.models.esm import model as esm_model
from bert_jax.models.esm.config import EsmConfig
from bert_jax.models.eurobert import huggingface as eurobert
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.gte import huggingface as gte
from bert_jax.models.gte import model as gte_model
from bert_jax.models.gte.config import GteConfig
from bert_jax.models.huggingface import HuggingFaceFormat
from bert_jax.models.jina_embeddings_v3 import huggingface as jina_embeddings_v3
from bert_jax.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.led import huggingface as led
from bert_jax.models.led import model as led_model
from bert_jax.models.led.config import LedConfig
from bert_jax.models.longformer import huggingface as longformer
from bert_jax.models.longformer import model as longformer_model
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.modernbert import huggingface as modernbert
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.modernbert_decoder import huggingface as modernbert_decoder
from bert_jax.models.modernbert_decoder.config import ModernBertDecoderConfig
from bert_jax.models.mpnet import huggingface as mpnet
from bert_jax.models.mpnet import model as mpnet_model
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.nomic_bert import huggingface as nomic_bert
from bert_jax.models.nomic_bert import model as nomic_bert_model
from bert_jax.models.nomic_bert.config import NomicBertConfig
from bert_jax.models.pre_norm.model import PreNormEncoder
from bert_jax.models.roberta import huggingface as roberta
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.models.seq2seq.config import Seq2SeqTransformerConfig
from bert_jax.models.seq2seq.huggingface import Seq2SeqFormat
from bert_jax.models.seq2seq.network import EncoderDecoder
from bert_jax.models.t5 import huggingface as t5
from bert_jax.models.t5 import model as t5_model
from bert_jax.models.t5.config import T5Config
from bert_jax.models.ultrabert import huggingface as ultrabert
from bert_jax.models.ultrabert.config import UltraBertConfig


class Family(NamedTuple):
    """Holds what a family of encoders provides.

    Attributes:
      encoder: builds the module from (config, compute, rngs), an `Encoder`. (`Any`, because no type
        is both a protocol and an `nnx.Module`.)
      parameter_axes: (path pattern, logical axes) of the encoder's parameters.
      hugging_face: the names in Hugging Face's files.
    """

    encoder: Callable[[Any, ComputeConfig, nnx.Rngs], Any]
    parameter_axes: Sequence[tuple[str, tuple[str | None, ...]]]
    hugging_face: HuggingFaceFormat


class EncoderDecoderFamily(NamedTuple):
    """Holds what a family of encoder-decoders provides; `network` builds it like `encoder`."""

    network: Callable[[Any, ComputeConfig, nnx.Rngs], EncoderDecoder]
    hugging_face: Seq2SeqFormat


_BERT_AXES = bert_model.PARAMETER_AXES
_PRE_NORM_AXES = [*_BERT_AXES, ("final_norm/*", (None,))]

FAMILIES: dict[type[TransformerConfig], Family] = {
    BertConfig: Family(bert_model.BertEncoder, _BERT_AXES, bert.HUGGING_FACE),
    RobertaConfig: Family(bert_model.BertEncoder, _BERT_AXES, roberta.HUGGING_FACE),
    AlbertConfig: Family(
        albert_model.AlbertEncoder, albert_model.PARAMETER_AXES, albert.HUGGING_FACE
    ),
    # Its attention has no parameters besides BERT's, so the rows are BERT's.
    BigBirdConfig: Family(bigbird_model.BigBirdEncoder, _BERT_AXES, bigbird.HUGGING_FACE),
    DistilBertConfig: Family(bert_model.BertEncoder, _BERT_AXES, distilbert.HUGGING_FACE),
    ElectraConfig: Family(bert_model.BertEncoder, _BERT_AXES, electra.HUGGING_FACE),
    LongformerConfig: Family(
        longformer_model.LongformerEncoder,
        longformer_model.PARAMETER_AXES,
        longformer.HUGGING_FACE,
    ),
    MPNetConfig: Family(mpnet_model.MPNetEncoder, mpnet_model.PARAMETER_AXES, mpnet.HUGGING_FACE),
    DebertaV2Config: Family(
        deberta_v2_model.DebertaV2Encoder,
        deberta_v2_model.PARAMETER_AXES,
        deberta_v2.HUGGING_FACE,
    ),
    ModernBertConfig: Family(
        PreNormEncoder,
        _PRE_NORM_AXES,
        modernbert.HUGGING_FACE,
    ),
    EuroBertConfig: Family(PreNormEncoder, _PRE_NORM_AXES, eurobert.HUGGING_FACE),
    EsmConfig: Family(esm_model.EsmEncoder, esm_model.PARAMETER_AXES, esm.HUGGING_FACE),
    NomicBertConfig: Family(nomic_bert_model.build_nomic_bert, _BERT_AXES, nomic_bert.HUGGING_FACE),
    GteConfig: Family(gte_model.build_gte, _BERT_AXES, gte.HUGGING_FACE),
    JinaEmbeddingsV3Config: Family(
        bert_model.BertEncoder, _BERT_AXES, jina_embeddings_v3.HUGGING_FACE
    ),
    UltraBertConfig: Family(PreNormEncoder, _PRE_NORM_AXES, ultrabert.HUGGING_FACE),
    ModernBertDecoderConfig: Family(
        PreNormEncoder,
        _PRE_NORM_AXES,
        modernbert_decoder.HUGGING_FACE,
    ),
}
"""The families of encoders by their config class."""

ENCODER_DECODER_FAMILIES: dict[type[Seq2SeqTransformerConfig], EncoderDecoderFamily] = {
    T5Config: EncoderDecoderFamily(t5_model.build_t5, t5.HUGGING_FACE),
    BartConfig: EncoderDecoderFamily(bart_model.build_bart, bart.HUGGING_FACE),
    LedConfig: EncoderDecoderFamily(led_model.build_led, led.HUGGING_FACE),
}
"""The families of encoder-decoders by their config class."""


def build_encoder(config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> Any:
    """Builds the encoder of a config, an `Encoder`, with initialized parameters."""
    return FAMILIES[type(config)].encoder(config, compute, rngs)


def build_encoder_decoder(
    config: EncoderDecoderConfig, compute: ComputeConfig, rngs: nnx.Rngs
) -> EncoderDecoder:
    """Builds the network of an encoder-decoder with initialized parameters."""
    return ENCODER_DECODER_FAMILIES[type(config)].network(config, compute, rngs)


def format_of(config: EncoderConfig) -> HuggingFaceFormat:
    """Returns the Hugging Face format of the family to which a config belongs."""
    return FAMILIES[type(config)].hugging_face


def formats() -> dict[str, HuggingFaceFormat]:
    """Returns the formats of all families of encoders by `model_type`."""
    return {
        model_type: family.hugging_face
        for family in FAMILIES.values()
        for model_type in family.hugging_face.class_prefixes
    }


def seq2seq_format_of(config: EncoderDecoderConfig) -> Seq2SeqFormat:
    """Returns the Hugging Face format of the family to which a config belongs."""
    return ENCODER_DECODER_FAMILIES[type(config)].hugging_face


def seq2seq_formats() -> dict[str, Seq2SeqFormat]:
    """Returns the formats of all families of encoder-decoders by `model_type`."""
    families = ENCODER_DECODER_FAMILIES.values()
    return {family.hugging_face.model_type: family.hugging_face for family in families}
