"""What training can start from: all that `pretrained.py` reads, and Google TF1 checkpoints."""

from pathlib import Path

from bert_jax.data.manifest import VOCABULARY
from bert_jax.experiment import Experiment
from bert_jax.interop import tf1
from bert_jax.interop.foreign import find_vocabulary
from bert_jax.text.compatibility import Tokenization, check_same_vocabulary
from bert_jax.train import run_folder
from bert_jax.train.distributed import say
from bert_jax.train.pretrained import LoadedModel, assemble, load_model


def load_any(path: str | Path) -> LoadedModel:
    """Reads a run folder, one step of a run, a Hugging Face folder or a Google TF1 checkpoint.

    Raises:
      UserError: as `load_model`.
    """
    if tf1.find_checkpoint(Path(path)) is not None:
        return assemble(tf1.read_checkpoint(Path(path)), str(path))
    return load_model(path)


def vocabulary_folder(model: str) -> Path:
    """Finds the folder with the vocabulary files of a model that `load_any` reads."""
    path = Path(model)
    checkpoint = tf1.find_checkpoint(path)
    if checkpoint is not None:
        return checkpoint.parent
    if run_folder.is_run(path):
        return path / VOCABULARY
    if path.name.isdigit() and path.parent.name == run_folder.CHECKPOINTS:
        return path.parent.parent / VOCABULARY
    return path


def check_starting_vocabulary(
    experiment: Experiment, folder: Path, data: Tokenization, remedy: str
) -> None:
    """Compares the vocabulary of a run's data with that of the model that the run starts from.

    A run that was started before is compared with the vocabulary in its `folder` instead: the
    model that it started from may be gone. Reads no parameters.

    Args:
      remedy: the next step for the user, with "{vocabulary}" where the model's folder goes.

    Raises:
      UserError: they differ.
    """
    model = str(folder) if (folder / VOCABULARY).exists() else experiment.init_from
    if model is None:
        return
    place = folder / VOCABULARY if model == str(folder) else vocabulary_folder(model)
    vocabulary = find_vocabulary(place)
    if vocabulary is None:
        say(
            f"{model} has no vocabulary files, so they cannot be compared with those of {data.path}"
        )
        return
    check_same_vocabulary(Tokenization.of(vocabulary, model), data, remedy.format(vocabulary=place))
