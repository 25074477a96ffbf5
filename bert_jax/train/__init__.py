"""Trains an `Experiment`; the package itself can be called: `bert_jax.train(experiment, folder)`.

The public function `train` has the same name as this package, and importing a package binds its
name in `bert_jax`. So that `bert_jax.train` means one thing in every case, the module is callable.
"""

import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert_jax.config.experiment import Experiment


def train(
    experiment: "Experiment", folder: str | Path, *, checkpoints: str | Path | None = None
) -> bool:
    """Trains an experiment in a run folder, or resumes the run that the folder holds.

    Args:
      experiment: what `get_config` of a recipe returns, or one of your own.
      folder: the run folder; it then holds checkpoints, metrics.jsonl and report.html.
      checkpoints: folder of the checkpoints, possibly on gs://; None for one in `folder`.

    Returns:
      True when training is complete; False when SIGTERM or Ctrl-C stopped it after a checkpoint was
      saved, so that the same call resumes.

    Raises:
      UserError: data, model or folder do not fit the experiment; the message says what to change.
    """
    from bert_jax.train.preemption import EXIT_DONE
    from bert_jax.train.run import run

    checkpoint_dir = None if checkpoints is None else str(checkpoints)
    return run(experiment, Path(folder), checkpoint_dir) == EXIT_DONE


class _CallableModule(types.ModuleType):
    """Makes a module callable: calls `train`."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _CallableModule
