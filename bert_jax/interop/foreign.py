"""What a reader of another format hands over, whatever the format."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.models.config import BertConfig, TaskHead
from bert_jax.text.vocabulary import Vocabulary, load_vocabulary

_VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


class Foreign(NamedTuple):
    """A model as it lies in its folder.

    Attributes:
      flat: parameters by our paths, float32; the parts that the folder has.
      config: the encoder.
      vocabulary: None when the folder holds no vocabulary files.
      head: the head of the task that the model was fine-tuned for; None for a pretrained one.
    """

    flat: dict[str, np.ndarray]
    config: BertConfig
    vocabulary: Vocabulary | None
    head: TaskHead | None = None


def find_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary in a folder, None if it has no files of one; UserError if it is damaged."""
    if any(any(folder.glob(pattern)) for pattern in _VOCABULARY_FILES):
        return load_vocabulary(folder)
    return None
