"""What training can start from: all that `pretrained.py` reads, and Google TF1 checkpoints."""

from pathlib import Path

from bert_jax.interop import tf1
from bert_jax.train.pretrained import LoadedModel, assemble, load_model


def load_any(path: str | Path) -> LoadedModel:
    """Reads a run folder, one step of a run, a Hugging Face folder or a Google TF1 checkpoint.

    Raises:
      UserError: as `load_model`.
    """
    if tf1.find_checkpoint(Path(path)) is not None:
        return assemble(tf1.read_checkpoint(Path(path)), str(path))
    return load_model(path)
