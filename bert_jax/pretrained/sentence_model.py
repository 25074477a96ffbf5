"""Loads a sentence encoder: an encoder, and how its hidden states become vectors of texts.

a folder of sentence-transformers    modules.json and what it lists
a run that trained one               the config and the parameters of its checkpoint
any other model                      the mean over all tokens
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.interop.sentence_transformers import is_sentence_folder, read_sentence_head
from bert_jax.models.parameters import check_finite
from bert_jax.models.sentence_encoder.config import SENTENCE_HEAD, SentenceEncoderConfig
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.pretrained.load import LoadedModel, load_model, require_no_adapter


@dataclass(frozen=True, kw_only=True)
class SentenceModel:
    """Holds a sentence encoder in memory.

    Attributes:
      model: the encoder and its tokenizer, and how they were loaded.
      config: what follows the encoder.
      head_params: its parameters, nested, such as {"dense": {"0": {"kernel": ...}}}; {} without
        dense layers.
      is_trained: whether the source says how its vectors are made; otherwise `config` is a default.
    """

    model: LoadedModel
    config: SentenceEncoderConfig
    head_params: dict[str, Any] = field(default_factory=dict[str, Any])
    is_trained: bool

    @property
    def params(self) -> Params:
        """Returns the parameters of `build_sentence_encoder(model.config, config)`."""
        head = {SENTENCE_HEAD: self.head_params} if self.head_params else {}
        return {"encoder": self.model.params["encoder"], **head}

    @property
    def max_length(self) -> int:
        """Returns to how many tokens texts are truncated, special tokens included."""
        longest = self.model.config.max_length
        return min(self.config.max_seq_length or longest, longest)


def load_sentence_model(path: str | Path) -> SentenceModel:
    """Reads a folder of sentence-transformers, a run, or any other model as a sentence encoder.

    Raises:
      UserError: as `load_model` and `sentence_model_of`.
    """
    return sentence_model_of(load_model(path))


def is_sentence_encoder(model: LoadedModel) -> bool:
    """Returns whether a model comes from a folder or run that says how vectors are made."""
    return model.sentence_encoder is not None or (
        model.run is None and is_sentence_folder(Path(model.path))
    )


def sentence_model_of(model: LoadedModel) -> SentenceModel:
    """Returns a model with what follows its encoder, which is read from the model's folder.

    Raises:
      UserError: the folder has a module that is not supported, is that of a sparse or multi-vector
        model, or is damaged; or the model has an adapter that could not be merged.
    """
    require_no_adapter(model, "embed")
    if model.sentence_encoder is not None:
        config, head_params = model.sentence_encoder, model.sentence_head
    elif is_sentence_encoder(model):
        config, flat = read_sentence_head(
            Path(model.path), model.config.hidden_size, model.tokenizer
        )
        head_params = paths.unflatten(flat)
    else:
        return SentenceModel(model=model, config=SentenceEncoderConfig(), is_trained=False)
    check_finite(paths.flatten(head_params, SENTENCE_HEAD), model.path)
    return SentenceModel(model=model, config=config, head_params=head_params, is_trained=True)
