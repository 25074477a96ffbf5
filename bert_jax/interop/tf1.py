"""Reads checkpoints of Google's BERT, ALBERT and ELECTRA (TensorFlow 1 variables).

bert_config.json     the architecture of BERT; ELECTRA's follows from its variables
albert_config.json   the architecture of ALBERT, whose files are model.ckpt-best.* and *.model
bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001
vocab.txt
"""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import MissingExtraError, UserError
from bert_jax.interop.huggingface import ImportedModel, find_tokenizer, read_config
from bert_jax.io.import_tensorflow import import_tensorflow
from bert_jax.models.albert.tf1 import TF1 as ALBERT_TF1
from bert_jax.models.bert.tf1 import TF1
from bert_jax.models.electra import tf1 as electra
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.huggingface import ACTIVATIONS
from bert_jax.models.layers.config import Activation

CONFIG, ALBERT_CONFIG = "bert_config.json", "albert_config.json"
# ALBERT's "gelu" is the tanh form, which Hugging Face's files of v2 call "gelu_new".
_ALBERT_ACTIVATIONS: dict[str, Activation] = {**ACTIVATIONS, "gelu": "gelu_tanh"}
_INDEX_SUFFIX, _INDEX_FILES = ".index", "*.index"


def find_checkpoint(path: Path) -> Path | None:
    """Finds the prefix of a checkpoint's files, given a folder or the prefix; None if not TF1.

    Raises:
      UserError: the folder holds several checkpoints.
    """
    if Path(f"{path}{_INDEX_SUFFIX}").is_file():
        return path
    if not path.is_dir():
        return None
    prefixes = [f.with_name(f.name.removesuffix(_INDEX_SUFFIX)) for f in path.glob(_INDEX_FILES)]
    # ELECTRA's release has names without ".ckpt", such as electra_small.index.
    found = sorted(
        prefix
        for prefix in prefixes
        if ".ckpt" in prefix.name or any(path.glob(f"{prefix.name}.data-00000-of-*"))
    )
    if len(found) > 1:
        names = ", ".join(prefix.name for prefix in found)
        raise UserError(
            f"{path} has several checkpoints: {names}; append one of these names to the path"
        )
    return found[0] if found else None


def read_checkpoint(path: Path, *, generator: bool = False) -> ImportedModel:
    """Reads the model at a folder or prefix that `find_checkpoint` accepts.

    Args:
      generator: whether to read the generator of an ELECTRA checkpoint, not the discriminator.

    Raises:
      UserError: a file is missing or damaged, or of a model that is not supported.
    """
    prefix = find_checkpoint(path)
    if prefix is None:
        raise UserError(f"{path}: expected {CONFIG} and *.ckpt.index of Google's release there")
    folder = prefix.parent
    with _open_checkpoint(prefix) as reader:
        shapes: dict[str, list[int]] = reader.get_variable_to_shape_map()
        if electra.is_electra(shapes):
            scope = "generator" if generator else "electra"
            names = electra.GENERATOR if generator else electra.DISCRIMINATOR
            config: EncoderConfig = _electra_config(shapes, scope, prefix)
        elif generator:
            raise UserError(f"{prefix}: --generator is for ELECTRA, this is a checkpoint of BERT")
        elif (folder / ALBERT_CONFIG).is_file():
            config, _ = read_config(folder / ALBERT_CONFIG, "albert", _ALBERT_ACTIVATIONS)
            names = ALBERT_TF1
        else:
            config, _ = read_config(folder / CONFIG)
            names = TF1
        # Checkpoints of a training run also have the moments of Adam, twice the size of the model;
        # only the named variables are read.
        wanted = names.parameter_names(shapes, str(prefix))
        tensors = {name: reader.get_tensor(name) for name in wanted}
    flat = names.from_external(tensors, str(prefix))
    flat_params = {path: np.asarray(tensor, np.float32) for path, tensor in flat.items()}
    return ImportedModel(flat_params, config, find_tokenizer(folder))


def _electra_config(shapes: Mapping[str, Sequence[int]], scope: str, prefix: Path) -> ElectraConfig:
    try:
        return electra.config_from_shapes(shapes, scope)
    except KeyError as error:
        raise UserError(
            f"{prefix}: expected the variable {error} of an ELECTRA checkpoint; a checkpoint of "
            "fine-tuning has no generator"
        ) from None


@contextlib.contextmanager
def _open_checkpoint(prefix: Path) -> Generator[Any]:
    """Opens a checkpoint for reading.

    Raises:
      UserError: a damaged file, also if that is found inside the `with` block; or no TensorFlow.
    """
    try:
        tf: Any = import_tensorflow()
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"{prefix}: reading TF1 checkpoints needs TensorFlow", "seqio"
        ) from None
    try:
        yield tf.train.load_checkpoint(str(prefix))
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{prefix}: this TensorFlow checkpoint cannot be read ({reason}); fetch it again"
        ) from None
