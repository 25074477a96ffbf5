"""What a reader of another format hands over, whatever the format."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.models.config import BertConfig, TaskHead
from bert_jax.text.tokenizer import Tokenizer, load_tokenizer

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


class ImportedModel(NamedTuple):
    """A model as it lies in its folder.

    Attributes:
      flat: parameters by our paths, float32; the parts that the folder has.
      config: the encoder.
      vocabulary: None when the folder holds no vocabulary files.
      head: the head of the task that the model was fine-tuned for; None for a pretrained one.
    """

    flat_params: dict[str, np.ndarray]
    config: BertConfig
    tokenizer: Tokenizer | None
    head: TaskHead | None = None


def find_tokenizer(folder: Path) -> Tokenizer | None:
    """The vocabulary in a folder, None if it has no files of one; UserError if it is damaged."""
    if any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        return load_tokenizer(folder)
    return None
