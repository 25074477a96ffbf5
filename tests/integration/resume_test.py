"""Covers bert_jax/train/run.py: a run that is killed, also while it saves, resumes exactly."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.params import paths
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED
from tests.helpers.processes import drive, drive_together
from tests.helpers.same_parameters import assert_same_parameters

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


def parameters(run: Path) -> dict[str, np.ndarray]:
    params, info, step = restore_params(run / "checkpoints")
    assert step == 40
    assert info["position"] == 10 * 8  # the second phase counts its own examples
    return paths.flatten(params)


def losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 41))
    return [row["loss"] for row in rows]


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("straight") / "run"
    drive(corpus, run, expect=EXIT_DONE)
    return run


@pytest.mark.parametrize(
    "interruptions",
    [
        [("--kill-in-save", "20", KILLED)],
        pytest.param(
            [("--term-at", "7", EXIT_PREEMPTED), ("--kill-at", "33", KILLED)],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["killed in save", "terminated and killed"],
)
def test_interrupted_run_is_bit_identical(corpus, straight, tmp_path, interruptions):
    run = tmp_path / "run"
    for flag, step, exit_code in interruptions:
        drive(corpus, run, flag, step, expect=exit_code)
    drive(corpus, run, expect=EXIT_DONE)
    expected = parameters(straight)
    found = parameters(run)
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        assert np.array_equal(found[path], leaf), path
    assert losses(run) == losses(straight)
    assert losses(straight)[-1] < losses(straight)[0]


MASKING_RATES = [
    "train.phases.0.max_predictions_per_seq=10",  # first, because 5 are too few for the rate
    "train.phases.0.mlm_probability=0.3",
    "train.phases.1.mlm_probability=0.05",
]


CAUSAL_PHASE = [
    *("objective.nsp_weight=0", "data.input_format=SingleSegment"),
    "train.phases.0.causal_lm=true",
]


# The first phase has 30 updates, so the second one resumes in the other phase.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "saved_step"),
    [
        (["train.optimizer=Muon"], "20"),
        (MASKING_RATES, "30"),
        (MASKING_RATES, "40"),
        (CAUSAL_PHASE, "40"),
        (["train.phases.0.batch_size=4"], "40"),
    ],
    ids=[
        *("muon", "masking rates", "masking rates, second phase", "causal, then masked"),
        "small batches, then large ones",
    ],
)
def test_changed_run_that_was_killed_is_bit_identical(corpus, tmp_path, changes, saved_step):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    drive(corpus, straight, "--set", *changes, expect=EXIT_DONE)
    drive(corpus, killed, "--set", *changes, "--kill-in-save", saved_step, expect=KILLED)
    drive(corpus, killed, "--set", *changes, expect=EXIT_DONE)
    assert_same_parameters(straight, killed)
    assert losses(straight) == losses(killed)


@pytest.mark.slow
def test_killed_run_with_other_corpora_in_each_phase_is_bit_identical(corpus, tmp_path):
    second = prepare_corpus(tmp_path / "second", num_documents=12, seed=1)
    corpora = [{"folder": str(folder)} for folder in (corpus, second)]
    mixture = json.dumps({"type": "CorpusMixture", "corpora": corpora})
    weights = ("train.phases.0.corpus_weights=[3,1]", "train.phases.1.corpus_weights=[0,1]")
    changes = ["--set", "data.input_format=SingleSegment", f"data.corpus={mixture}", *weights]
    changes.append("objective.nsp_weight=0")
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    drive(corpus, straight, *changes, expect=EXIT_DONE)
    # Resumed in the middle of the first phase, it goes on with the second one.
    drive(corpus, killed, *changes, "--kill-in-save", "20", expect=KILLED)
    drive(corpus, killed, *changes, expect=EXIT_DONE)
    assert_same_parameters(straight, killed)
    assert losses(straight) == losses(killed)
    first, other = json.loads((straight / "mixture.json").read_text())["quotas"]
    assert min(first) > 0 and other == [0, 10_000]


def rows(run: Path, count: int) -> list[str]:
    """Returns the examples of each step, in the order of the processes."""
    files = [(run / f"rows-{count}-{i}.txt").read_text().splitlines() for i in range(count)]
    return [" ".join(parts) for parts in zip(*files, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_sigterm_during_a_save_is_bit_identical_after_resuming(corpus, straight, tmp_path, count):
    """Sends the signal while process 0 is writing the checkpoint of step 20."""
    run = tmp_path / "run"
    drive_together(corpus, run, count, "--term-in-save", "20", expect=EXIT_PREEMPTED)
    saved = sorted(int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdigit())
    assert 20 in saved and saved[-1] > 20
    drive_together(corpus, run, count, expect=EXIT_DONE)
    for path, leaf in parameters(straight).items():
        found = parameters(run)[path]
        if count == 1:
            assert np.array_equal(found, leaf), path
        else:
            np.testing.assert_allclose(found, leaf, atol=2e-4, err_msg=path)


# `loader_test.py` compares the rows of any number of processes.
@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(2, 1), (2, 4), (4, 2)])
def test_examples_do_not_depend_on_the_number_of_processes(
    corpus, straight, tmp_path, first, second
):
    run = tmp_path / "run"
    drive_together(corpus, run, first, "--term-at", "20", expect=EXIT_PREEMPTED)
    drive_together(corpus, run, second, expect=EXIT_DONE)
    assert 20 <= len(rows(run, first)) < 40
    assert rows(run, first) + rows(run, second) == rows(straight, 1)
    np.testing.assert_allclose(losses(run), losses(straight), rtol=1e-5, atol=1e-5)
    for path, leaf in parameters(straight).items():
        np.testing.assert_allclose(parameters(run)[path], leaf, atol=2e-4, err_msg=path)
