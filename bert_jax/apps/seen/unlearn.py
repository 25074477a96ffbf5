"""Makes a run that never reads some documents, from the last checkpoint before it would.

Until the first update that reads one of the documents, a run without them is the same run. So the
checkpoint before it, continued without them, is bit for bit the run that never read them: exact
unlearning, at the price of repeating the updates since then (as in SISA, Bourtoule et al. 2021, but
without shards, because the order is known).
"""

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax.apps.seen.reading_history import ReadingHistory
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.experiment import Experiment
from bert_jax.data.corpus.document_list import read_document_list, read_lines
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.data.pretraining.provenance import document_starts
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path, atomic_write, make_folder
from bert_jax.runs import run_folder
from bert_jax.runs.checkpoints import checksums, step_folder
from bert_jax.runs.training_data import write_fingerprint


@dataclass(frozen=True, kw_only=True)
class UnlearningPlan:
    """Says what it costs to continue a run without some documents.

    Attributes:
      num_documents: how many are removed.
      first_update: the first update that reads one of them; None: none was read yet.
      start: the checkpoint to continue from; 0: there is none before that update, and the run
        begins again.
      num_updates: the updates of the whole run.
      saved_steps: the checkpoints that the run has.
    """

    num_documents: int
    first_update: int | None
    start: int
    num_updates: int
    saved_steps: tuple[int, ...]

    def __str__(self) -> str:
        if self.first_update is None:
            read = f"none of the listed documents ({self.num_documents:,}) was read"
        else:
            last = (
                f"the last one before it is {self.start:,}" if self.start else "none is before it"
            )
            read = (
                f"listed documents: {self.num_documents:,}, first read by update "
                f"{self.first_update:,}; of the checkpoints, {last}"
            )
        remaining = self.num_updates - self.start
        return f"{read}; {remaining:,} of {self.num_updates:,} updates remain to be done"


def plan_unlearning(run: Path, documents: Path) -> tuple[UnlearningPlan, ReadingHistory]:
    """Finds the first update that reads one of the documents, and the checkpoint before it.

    Args:
      run: a pretraining run, or a checkpoint, to which the search ends.
      documents: a list of documents (`data/corpus/document_list.py`).

    Raises:
      UserError: it is no pretraining run, its corpora have changed, or the list is wrong.
    """
    history = ReadingHistory(run)
    listed = np.flatnonzero(read_document_list(documents, history.corpora))
    starts = document_starts(history.texts[0])
    passages = list(zip(starts[listed].tolist(), starts[listed + 1].tolist(), strict=True))
    first = history.first_update(passages)
    # Later updates than the step of a checkpoint that `run` names were not searched.
    end = history.step + 1 if first is None else first
    before = [step for step in history.steps if step < end]
    plan = UnlearningPlan(
        num_documents=len(listed),
        first_update=first,
        start=before[-1] if before else 0,
        num_updates=history.experiment.train.steps,
        saved_steps=tuple(history.steps),
    )
    return plan, history


def continued_run(output: Path, documents: Path) -> Experiment | None:
    """Returns the config of a run that `write_run_without` began; None: there is none yet.

    Raises:
      UserError: the folder has another run.
    """
    if not run_folder.is_run_folder(output):
        return None
    config = run_folder.read_config(output)
    experiment = from_json(Experiment, config, str(output / run_folder.CONFIG))
    without = getattr(experiment.data, "without", None)
    if without is None or not set(read_lines(documents)) <= set(read_lines(Path(without))):
        raise UserError(
            f"{output}: holds a run that reads documents of {documents}; choose another --output"
        )
    return experiment


def write_run_without(
    plan: UnlearningPlan, history: ReadingHistory, documents: Path, output: Path
) -> Experiment:
    """Writes a run folder with the config without the documents, and the checkpoint to start from.

    Returns:
      The config; training it in `output` resumes from the checkpoint.

    Raises:
      UserError: there is no checkpoint before the first update that reads one of the documents.
    """
    if plan.start == 0:
        saved = ", ".join(f"{step:,}" for step in plan.saved_steps)
        raise UserError(
            f"{history.folder}: no checkpoint before update {plan.first_update:,}, the first that "
            f"reads one of the documents (the checkpoints are {saved}), so all "
            f"{plan.num_updates:,} updates have to be repeated: run `bert-jax pretrain` with the "
            f"recipe again, a new --run and --set data.without={documents}. Future runs keep more "
            "checkpoints with --set train.checkpoints.keep_last=N"
        )
    removed = read_lines(documents)
    if history.data.without:  # documents that the run did not read anyway
        removed += read_lines(history.folder / run_folder.WITHOUT)
    data = dataclasses.replace(history.data, without=str(output / run_folder.WITHOUT))
    experiment = dataclasses.replace(history.experiment, data=data)
    # Renamed when it is complete: a run folder without its checkpoint would begin at step 0.
    make_folder(output.parent)
    with atomic_path(output) as partial:
        partial.mkdir()
        atomic_write(partial / run_folder.WITHOUT, "".join(f"{line}\n" for line in removed))
        shutil.copytree(history.folder / TOKENIZER_FOLDER, partial / TOKENIZER_FOLDER)
        if (history.folder / run_folder.MIXTURE).exists():
            shutil.copy(history.folder / run_folder.MIXTURE, partial)
        run_folder.write_or_check_config(partial, experiment)
        if len(history.corpora) == 1:
            write_fingerprint(partial, history.corpora[0].manifest.fingerprint)
        _copy_checkpoint(plan.start, history, partial, experiment)
    return experiment


def _copy_checkpoint(
    step: int, history: ReadingHistory, output: Path, experiment: Experiment
) -> None:
    """Copies a checkpoint, with the config of the run that it now belongs to."""
    source = step_folder.absolute_path(run_folder.checkpoint_dir(history.folder)) / str(step)
    step_folder.verify_step(source)
    copy = step_folder.absolute_path(output / run_folder.CHECKPOINTS) / str(step)
    _copy_tree(source, copy)
    info_file = next(file for file in (copy / step_folder.INFO).iterdir() if file.is_file())
    info = json.loads(info_file.read_text())
    info_file.write_text(json.dumps(info | {"config": to_json(experiment)}))
    checksums.write_checksums(copy, step)


def _copy_tree(source: epath.Path, target: epath.Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_dir():
            _copy_tree(path, target / path.name)
        else:
            path.copy(target / path.name)
