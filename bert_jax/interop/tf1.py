"""Reads checkpoints of Google's original BERT release (TensorFlow 1 variables) with TensorFlow.

bert_config.json     the architecture
bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001
vocab.txt
"""

import os
from pathlib import Path

import numpy as np

from bert_jax.errors import MissingExtraError, UserError
from bert_jax.interop.huggingface import ImportedModel, find_tokenizer
from bert_jax.interop.huggingface_config import read_config
from bert_jax.models.bert.tf1 import TF1

CONFIG = "bert_config.json"
_INDEX_SUFFIX = ".index"


def find_checkpoint(path: Path) -> Path | None:
    """Finds the prefix of a checkpoint's files, given a folder or the prefix; None if not TF1.

    Raises:
      UserError: the folder holds several checkpoints.
    """
    if path.with_name(path.name + _INDEX_SUFFIX).is_file():
        return path
    if not path.is_dir():
        return None
    found = sorted(path.glob(f"*.ckpt*{_INDEX_SUFFIX}"))
    if len(found) > 1:
        names = ", ".join(file.name.removesuffix(_INDEX_SUFFIX) for file in found)
        raise UserError(
            f"{path} has several checkpoints: {names}; append one of these names to the path"
        )
    return found[0].with_name(found[0].name.removesuffix(_INDEX_SUFFIX)) if found else None


def read_checkpoint(path: Path) -> ImportedModel:
    """Reads the model at a folder or prefix that `find_checkpoint` accepts.

    Raises:
      UserError: a file is missing or damaged, or of a model that is not supported.
    """
    prefix = find_checkpoint(path)
    if prefix is None:
        raise UserError(f"{path}: expected {CONFIG} and *.ckpt.index of Google's release there")
    folder = prefix.parent
    config, _ = read_config(folder / CONFIG)
    return ImportedModel(_read_weights(prefix), config, find_tokenizer(folder))


def _read_weights(prefix: Path) -> dict[str, np.ndarray]:
    """Returns the parameters by path, float32; the name table ignores the optimizer's variables.

    Raises:
      UserError: a damaged file, a variable that BERT does not have, or no TensorFlow.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no warnings about GPU drivers
    try:
        import tensorflow as tf
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"{prefix}: reading TF1 checkpoints needs TensorFlow", "seqio"
        ) from None
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = TF1.parameter_names(reader.get_variable_to_shape_map(), str(prefix))
        tensors = {name: reader.get_tensor(name) for name in names}
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{prefix}: this TensorFlow checkpoint cannot be read ({reason}); fetch it again"
        ) from None
    flat = TF1.from_external(tensors, str(prefix))
    return {path: np.asarray(tensor, np.float32) for path, tensor in flat.items()}
