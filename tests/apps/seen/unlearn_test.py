"""Unlearns documents: the run equals, bit for bit, the run that has never read them.

Covers bert_jax/apps/seen/unlearn.py, and `data.without` in bert_jax/train/workloads/pretraining.py.
"""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.seen.reading_history import ReadingHistory
from bert_jax.apps.seen.unlearn import plan_unlearning, write_run_without
from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.data import CorpusMixture, WeightedCorpus
from bert_jax.config.experiment import Experiment
from bert_jax.data.corpus.document_list import write_document_list
from bert_jax.data.pretraining.provenance import document_starts
from bert_jax.errors import UserError
from bert_jax.params import paths
from bert_jax.runs.checkpoints import step_folder
from bert_jax.train.preemption import EXIT_DONE
from bert_jax.train.run import run
from tests.helpers.pretraining_recipes import prepare_recipes, small_experiment
from tests.helpers.processes import drive, drive_together, start
from tests.helpers.same_parameters import assert_same_parameters

STEPS = 20


def _with(experiment: Experiment, **data: Any) -> Experiment:
    train = experiment.train
    checkpoints = dataclasses.replace(train.checkpoints, keep_last=50, save_every=2)
    return dataclasses.replace(
        experiment,
        data=dataclasses.replace(experiment.data, **data),
        train=dataclasses.replace(train, checkpoints=checkpoints),
    )


def _bert(folder: Path) -> Experiment:
    corpus = str(prepare_corpus(folder, num_documents=80))
    return _with(tiny_experiment("unlearned", corpus, two_length_phases(STEPS)))


def _mixture(folder: Path) -> Experiment:
    corpora = [prepare_corpus(folder / str(seed), num_documents=60, seed=seed) for seed in (0, 1)]
    weighted = tuple(WeightedCorpus(folder=str(each), weight=1.0) for each in corpora)
    experiment = tiny_experiment("unlearned", "", two_length_phases(STEPS))
    return _with(experiment, corpus=CorpusMixture(corpora=weighted))


def _electra(folder: Path) -> Experiment:
    return _with(small_experiment("electra", prepare_recipes(folder), steps=STEPS))


def _list_late_documents(trained: Path, path: Path) -> tuple[np.ndarray, int]:
    """Lists the two documents that are read last; returns them and the first update."""
    history = ReadingHistory(trained)
    starts = document_starts(history.texts[0])
    whole = list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    firsts = [each[0].update if each else 0 for each in history.read(whole)]
    chosen = np.argsort(firsts)[-2:]
    first_documents = np.cumsum([0] + [each.num_documents for each in history.corpora])
    listed = []
    for document in chosen.tolist():
        corpus = int(np.searchsorted(first_documents, document, side="right")) - 1
        folder = str(history.corpora[corpus].folder)
        listed.append((folder, document - int(first_documents[corpus])))
    write_document_list(path, listed)
    return chosen, min(firsts[each] for each in chosen)


def _optimizer_state(folder: Path) -> Any:
    path = step_folder.absolute_path(folder) / "checkpoints" / str(STEPS) / step_folder.TRAINING
    names = step_folder.array_metadata(path)
    as_arrays = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        args = ocp.args.PyTreeRestore(restore_args=paths.unflatten(as_arrays))
        return reader.restore(path, args=args)


def _losses(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if row["split"] == "train"}


@pytest.mark.parametrize(
    "make", [_bert, *(pytest.param(each, marks=pytest.mark.slow) for each in (_electra, _mixture))]
)
def test_an_unlearned_run_is_the_run_that_never_read(make, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("BERT_JAX_COMPILATION_CACHE", str(tmp_path / "compiled"))
    experiment, trained = make(tmp_path / "corpus"), tmp_path / "trained"
    assert run(experiment, trained) == EXIT_DONE
    listed = tmp_path / "documents.tsv"
    documents, first = _list_late_documents(trained, listed)
    assert first > 2

    arguments = [str(trained), "--documents", str(listed), "--output", str(tmp_path / "unlearned")]
    assert main(["unlearn", *arguments, "--dry-run"]) == 0
    start = (first - 1) // 2 * 2
    message = (
        f"listed documents: 2, first read by update {first}; of the checkpoints, the last one "
        f"before it is {start}; {STEPS - start} of {STEPS} updates remain"
    )
    assert message in capsys.readouterr().err
    assert not (tmp_path / "unlearned").exists()
    assert main(["unlearn", *arguments]) == EXIT_DONE

    never, unlearned = tmp_path / "never", tmp_path / "unlearned"
    assert run(_with(experiment, without=str(listed)), never) == EXIT_DONE
    assert_same_parameters(never, unlearned, STEPS)
    # The optimizer's state, too, and the losses after the checkpoint.
    jax.tree.map(np.testing.assert_array_equal, *map(_optimizer_state, (never, unlearned)))
    found = _losses(unlearned)
    assert found == {step: loss for step, loss in _losses(never).items() if step > start}
    before, after = _losses(trained), _losses(never)
    assert min(step for step in before if before[step] != after[step]) == first

    # The proof: nothing of the documents was read, and in the first run it was.
    history = ReadingHistory(unlearned)
    starts = document_starts(history.texts[0])
    passages = [(int(starts[each]), int(starts[each + 1])) for each in documents]
    assert history.read(passages) == [[], []]
    assert all(ReadingHistory(trained).read(passages))
    # The same command resumes; it has nothing left to do.
    assert main(["unlearn", *arguments]) == EXIT_DONE
    # A checkpoint that has not read them is a start; later ones were not searched.
    early, _ = plan_unlearning(trained / f"checkpoints/{start}", listed)
    assert (early.first_update, early.start) == (None, start)
    capsys.readouterr()
    assert main(["unlearn", *arguments, "--dry-run"]) == 0  # the new run is there already
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_four_processes_and_a_kill_change_nothing(tmp_path) -> None:
    corpus = prepare_corpus(tmp_path / "corpus", num_documents=80)
    keep = ["train.checkpoints.keep_last=50", "train.checkpoints.save_every=5"]
    trained, listed = tmp_path / "trained", tmp_path / "documents.tsv"
    drive_together(corpus, trained, 4, "--set", *keep, expect=EXIT_DONE)
    _, first = _list_late_documents(trained, listed)
    without = ["--set", *keep, f"data.without={listed}"]
    drive_together(corpus, tmp_path / "never", 4, *without, expect=EXIT_DONE)
    unlearned = tmp_path / "unlearned"
    plan, history = plan_unlearning(trained, listed)
    assert plan.first_update == first and 0 < plan.start < first
    write_run_without(plan, history, listed, unlearned)
    without = ["--set", *keep, f"data.without={unlearned / 'without.tsv'}"]
    killed = ("--kill-at", str(plan.start + 7))
    drive_together(corpus, unlearned, 4, *without, *killed, expect=-signal.SIGKILL)
    drive_together(corpus, unlearned, 4, *without, expect=EXIT_DONE)
    assert_same_parameters(tmp_path / "never", unlearned, 40)


def test_the_cost_is_reported_if_no_checkpoint_is_early_enough(tmp_path) -> None:
    experiment, trained = _bert(tmp_path / "corpus"), tmp_path / "trained"
    assert run(experiment, trained) == EXIT_DONE
    listed = tmp_path / "documents.tsv"
    history = ReadingHistory(trained)
    (reading, *_) = history.read([(0, int(document_starts(history.texts[0])[1]))])[0]
    write_document_list(listed, [(str(history.corpora[0].folder), 0)])
    for step in range(2, reading.update):
        if (checkpoint := trained / f"checkpoints/{step}").exists():
            checkpoint.rename(tmp_path / f"moved-{step}")
    plan, history = plan_unlearning(trained, listed)
    assert plan.start == 0
    message = rf"no checkpoint before update {reading.update}, .* all {STEPS} updates have to be"
    with pytest.raises(UserError, match=message):
        write_run_without(plan, history, listed, tmp_path / "unlearned")
    assert not (tmp_path / "unlearned").exists()


def test_another_list_does_not_continue_a_run(tmp_path) -> None:
    corpus = prepare_corpus(tmp_path / "corpus", num_documents=10)
    listed = tmp_path / "documents.tsv"
    write_document_list(listed, [(str(corpus), 0)])
    settings = ("--steps", "8", "--set", f"data.without={listed}")
    drive(corpus, tmp_path / "run", *settings, expect=EXIT_DONE)
    write_document_list(listed, [(str(corpus), 1)])
    process = start(corpus, tmp_path / "run", *settings)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert f"{listed}: differs from {tmp_path / 'run' / 'without.tsv'}" in errors
