"""What training can start from: all that `pretrained.py` reads, and Google TF1 checkpoints."""

import logging
from pathlib import Path

from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.experiment import Experiment
from bert_jax.interop import tf1
from bert_jax.interop.huggingface import find_tokenizer
from bert_jax.pretrained.load import LoadedModel, build_model, load_model
from bert_jax.runs import run_folder
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer

logger = logging.getLogger(__name__)


def load_model_or_tf1(path: str | Path) -> LoadedModel:
    """Reads a run folder, one step of a run, a Hugging Face folder or a Google TF1 checkpoint.

    Raises:
      UserError: as `load_model`.
    """
    if tf1.find_checkpoint(Path(path)) is not None:
        return build_model(tf1.read_checkpoint(Path(path)), str(path))
    return load_model(path)


def tokenizer_folder(model: str) -> Path:
    """Finds the folder with the vocabulary files of a model that `load_any` reads."""
    path = Path(model)
    checkpoint = tf1.find_checkpoint(path)
    if checkpoint is not None:
        return checkpoint.parent
    if run_folder.is_run_folder(path):
        return path / TOKENIZER_FOLDER
    if path.name.isdigit() and path.parent.name == run_folder.CHECKPOINTS:
        return path.parent.parent / TOKENIZER_FOLDER
    return path


def check_initial_tokenizer(
    experiment: Experiment, folder: Path, data: Tokenization, remedy: str
) -> None:
    """Compares the vocabulary of a run's data with that of the model that the run starts from.

    A run that was started before is compared with the vocabulary in its `folder` instead: the
    model that it started from may be gone. Reads no parameters.

    Args:
      remedy: the next step for the user, with "{tokenizer}" where the model's folder goes.

    Raises:
      UserError: they differ.
    """
    model = str(folder) if (folder / TOKENIZER_FOLDER).exists() else experiment.init_from
    if model is None:
        return
    tokenizer_path = folder / TOKENIZER_FOLDER if model == str(folder) else tokenizer_folder(model)
    tokenizer = find_tokenizer(tokenizer_path)
    if tokenizer is None:
        logger.warning(
            "%s has no vocabulary files, so they cannot be compared with those of %s",
            model,
            data.path,
        )
        return
    check_same_tokenizer(
        Tokenization.of(tokenizer, model), data, remedy.format(tokenizer=tokenizer_path)
    )
