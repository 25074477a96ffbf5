"""Makes an encoder of texts of a loaded model: dense, sparse or multi-vector."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.multi_vector_encoder import read_multi_vector_head
from bert_jax.interop.sentence_folder import (
    EmbeddingKind,
    is_sentence_folder,
    kind_of_folder,
    other_kind,
)
from bert_jax.interop.sentence_transformers import read_sentence_head
from bert_jax.interop.sparse_encoder import read_sparse_head
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.parameters import check_finite
from bert_jax.models.sentence_encoder.config import (
    SENTENCE_HEAD,
    EmbeddingConfig,
    MultiVectorEncoderConfig,
    SentenceEncoderConfig,
    SparseEncoderConfig,
)
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.pretrained.load import (
    LoadedModel,
    load_encoder,
    require_masked_lm,
    require_no_adapter,
    require_tokenizer,
)


@dataclass(frozen=True, kw_only=True)
class _TextEncoder:
    """Holds an encoder of texts in memory.

    Attributes:
      model: the encoder and its tokenizer, and how they were loaded.
      config: what makes vectors of hidden states.
      head_params: its parameters, nested, such as {"dense": {"0": {"kernel": ...}}}; {} if it has
        none.
    """

    model: LoadedModel
    config: EmbeddingConfig
    head_params: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def params(self) -> Params:
        """Returns the parameters of the network that the config builds."""
        head = {SENTENCE_HEAD: self.head_params} if self.head_params else {}
        return {"encoder": self.model.params["encoder"], **head}

    @property
    def max_length(self) -> int:
        """Returns to how many tokens texts are truncated, special tokens included."""
        longest = self.model.config.max_length
        return min(self.config.max_seq_length or longest, longest)


@dataclass(frozen=True, kw_only=True)
class SentenceModel(_TextEncoder):
    """Holds a sentence encoder, which has one dense vector for each text.

    Attributes:
      is_trained: whether the source says how its vectors are made; otherwise `config` is a default.
    """

    config: SentenceEncoderConfig
    is_trained: bool


@dataclass(frozen=True, kw_only=True)
class SparseModel(_TextEncoder):
    """Holds a sparse encoder, which has a weight for each token of the vocabulary."""

    config: SparseEncoderConfig

    @property
    def params(self) -> Params:
        """Returns the parameters of `build_sparse_encoder(model.config, config)`."""
        parts = masked_lm_parts(self.model.config)
        return {**super().params, **{name: self.model.params[name] for name in parts}}


@dataclass(frozen=True, kw_only=True)
class MultiVectorModel(_TextEncoder):
    """Holds a multi-vector encoder, which has a vector for each token of a text."""

    config: MultiVectorEncoderConfig


EmbeddingModel = SentenceModel | SparseModel | MultiVectorModel


def load_sentence_model(path: str | Path) -> SentenceModel:
    """Reads a folder of sentence-transformers, a run, or any other model as a sentence encoder.

    Raises:
      UserError: as `load_model` and `sentence_model_of`.
    """
    return sentence_model_of(load_encoder(path))


def load_embedding_model(path: str | Path) -> EmbeddingModel:
    """Reads a dense, sparse or multi-vector model; errors as `load_model`."""
    return embedding_model_of(load_encoder(path))


def is_sentence_encoder(model: LoadedModel) -> bool:
    """Returns whether a model comes from a folder or run that says how vectors are made."""
    return model.sentence_encoder is not None or (
        model.run is None and is_sentence_folder(Path(model.path))
    )


def embedding_kind(model: LoadedModel) -> EmbeddingKind:
    """Returns the kind of vectors of a model; "dense" unless its run or folder says another."""
    match model.sentence_encoder:
        case SparseEncoderConfig():
            return "sparse"
        case MultiVectorEncoderConfig():
            return "multi_vector"
        case SentenceEncoderConfig():
            return "dense"
        case None:
            return kind_of_folder(Path(model.path)) if is_sentence_encoder(model) else "dense"


def embedding_model_of(model: LoadedModel) -> EmbeddingModel:
    """Returns a model with what makes its vectors, which is read from its run or folder.

    Raises:
      UserError: the folder has a module that is not supported, or is damaged; the model has an
        adapter that could not be merged; or it is sparse and has no masked-LM head.
    """
    require_no_adapter(model, "embed")
    config, head_params = _read_head(model)
    check_finite(paths.flatten(head_params, SENTENCE_HEAD), model.path)
    match config:
        case SparseEncoderConfig():
            require_masked_lm(model, "make sparse vectors")
            return SparseModel(model=model, config=config, head_params=head_params)
        case MultiVectorEncoderConfig():
            longest, expansion = model.config.max_length, config.expansion
            if expansion is not None and expansion.length > longest:
                raise UserError(
                    f"{model.path}: queries are extended to {expansion.length} tokens, but the "
                    f"encoder reads at most {longest}; the files are of different models"
                )
            return MultiVectorModel(model=model, config=config, head_params=head_params)
        case SentenceEncoderConfig():
            return SentenceModel(
                model=model,
                config=config,
                head_params=head_params,
                is_trained=is_sentence_encoder(model),
            )


def _read_head(model: LoadedModel) -> tuple[EmbeddingConfig, dict[str, Any]]:
    if model.sentence_encoder is not None:
        return model.sentence_encoder, model.sentence_head
    if not is_sentence_encoder(model):
        return SentenceEncoderConfig(), {}
    folder, size = Path(model.path), model.config.hidden_size
    match kind_of_folder(folder):
        case "sparse":
            config, flat = read_sparse_head(folder, model.config.vocab_size, model.tokenizer)
        case "multi_vector":
            config, flat = read_multi_vector_head(folder, size, require_tokenizer(model))
        case "dense":
            config, flat = read_sentence_head(folder, size, model.tokenizer)
    return config, paths.unflatten(flat)


def sentence_model_of(model: LoadedModel) -> SentenceModel:
    """Returns a model with what follows its encoder, which is read from the model's folder.

    Raises:
      UserError: as `embedding_model_of`; or the model is sparse or multi-vector.
    """
    if (kind := embedding_kind(model)) != "dense":
        raise other_kind(Path(model.path), kind, "dense")
    sentence = embedding_model_of(model)
    assert isinstance(sentence, SentenceModel)
    return sentence


def sparse_model_of(model: LoadedModel) -> SparseModel:
    """Returns a sparse model; UserError for another kind, and as `embedding_model_of`."""
    sparse = embedding_model_of(model)
    if not isinstance(sparse, SparseModel):
        raise other_kind(Path(model.path), embedding_kind(model), "sparse")
    return sparse


def multi_vector_model_of(model: LoadedModel) -> MultiVectorModel:
    """Returns a multi-vector model; UserError for another kind, and as `embedding_model_of`."""
    multi_vector = embedding_model_of(model)
    if not isinstance(multi_vector, MultiVectorModel):
        raise other_kind(Path(model.path), embedding_kind(model), "multi_vector")
    return multi_vector
