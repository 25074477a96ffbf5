"""Compares training of some rows of the token embeddings with training of the whole table.

Covers bert_jax/train/tuning/token_rows.py, and the token ids that workloads say their batches have.
"""

import functools
import random
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import (
    SPECIAL_TOKENS,
    WORDS,
    random_parameters,
    small_config,
    word_tokenizer,
)
from bert_jax.config.config_lib import override
from bert_jax.config.data import FineTuningData
from bert_jax.config.embedding_losses import MaxSimRankingLoss, MultipleNegativesRankingLoss
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Glue
from bert_jax.config.objectives import FineTuning
from bert_jax.config.sentence_embeddings import TextFile
from bert_jax.config.train import (
    AdamW,
    Lamb,
    Muon,
    Optimizer,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.config.tuning import EWC, TuningConfig
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.pretrained.load import build_model, load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.optimizer import learning_rate_schedule
from bert_jax.train.presets import sentence_embedding_experiment
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from bert_jax.train.tuning.token_rows import TABLE, choose_token_rows
from bert_jax.train.workloads import make_workload
from tests.helpers.one_device import one_device_mesh
from tests.helpers.same_parameters import assert_same_parameters
from tests.helpers.task_runs import KINDS, small_experiment

HEAD = SequenceClassificationHead(labels=("no", "yes"))
VOCAB_SIZE = 8192
IDS = np.arange(90) * 91
"""Ids that are spread over the vocabulary, so that the row of an id has another number."""
RATE, DECAY = 1e-2, 0.1
MODEL = small_config(
    vocab_size=VOCAB_SIZE,
    num_hidden_layers=1,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
ADAMW = AdamW(weight_decay=DECAY)


def experiment(
    optimizer: Optimizer = ADAMW,
    preset: Parallelism = "dp",
    microbatches: int = 1,
    tuning: TuningConfig = TuningConfig(),  # noqa: B008 (frozen)
) -> Experiment:
    phase = Phase(steps=9, seq_length=12, batch_size=16, gradient_accumulation_steps=microbatches)
    return Experiment(
        name="test",
        objective=FineTuning(model=MODEL, head=HEAD, classifier_dropout=0.0),
        data=FineTuningData(task=Glue(task="rte", folder="unused"), tokenizer="unused"),
        train=TrainConfig(
            phases=(phase,),
            optimizer=optimizer,
            schedule=WarmupLinear(peak_learning_rate=RATE, warmup_steps=1),
            tuning=tuning,
        ),
        mesh=make_mesh_config(preset),
    )


def train(config: Experiment, token_ids: np.ndarray | None, devices: int = 1):
    """Returns the table before three steps, the state after them, and the norms of gradients."""
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:devices])
    with jax.set_mesh(mesh):
        setup = TrainSetup.from_experiment(config, mesh, lambda: token_ids)
        phase, fields, norms = config.train.phases[0], setup.objective.batch_fields(), []
        step = setup.compile_step(phase, fields, [{"B": 16, "L": 12}])
        state = initialize_or_load(setup)
        table = np.array(paths.flatten(state["params"])[TABLE])
        for seed in range(3):
            batch = fine_tuning_batch(HEAD, batch_size=16, seq_length=12, vocab_size=90, seed=seed)
            batch["input_ids"] = IDS[batch["input_ids"]].astype(np.int32)
            placed = {name: batch[name] for name in fields}
            state, metrics = step(state, sharding.put_batch(placed, sharding.batch_sharding(mesh)))
            norms.append(float(metrics["grad_norm"]))
    return table, jax.device_get(state), norms


@functools.cache
def train_whole_table(optimizer: Optimizer):
    return train(experiment(optimizer), None)


@pytest.mark.parametrize(
    ("optimizer", "preset", "microbatches"),
    [
        (ADAMW, "dp", 1),
        (ADAMW, "dp", 2),
        (ADAMW, "fsdp_tp", 1),
        pytest.param(Muon(weight_decay=DECAY), "dp", 1, marks=pytest.mark.slow),
    ],
)
def test_rows_are_trained_as_in_the_whole_table(optimizer, preset, microbatches):
    _, expected, norms = train_whole_table(optimizer)
    config = experiment(optimizer, preset, microbatches)
    initial, found, found_norms = train(config, IDS, 1 if preset == "dp" else 8)
    assert found_norms == pytest.approx(norms, rel=1e-5)
    rows = found["token_rows"]
    assert len(rows) == 4096 and set(IDS) <= set(rows) and rows[-1] == IDS[-1]
    params, expected_params = (paths.flatten(state["params"]) for state in (found, expected))
    table, expected_table = params.pop(TABLE), expected_params.pop(TABLE)
    for path, leaf in expected_params.items():
        np.testing.assert_allclose(params[path], leaf, atol=1e-5, err_msg=path)
    np.testing.assert_allclose(table[rows], expected_table[rows], atol=1e-5)
    assert np.abs(table[IDS] - initial[IDS]).max() > RATE
    # No text has the others: they keep their values, and the whole table's decay.
    others = np.setdiff1d(np.arange(VOCAB_SIZE), rows)
    np.testing.assert_array_equal(table[others], initial[others])
    rate = learning_rate_schedule(config.train.schedule, config.train.steps)
    decay = np.prod([1 - np.asarray(rate(step)) * DECAY for step in range(3)])
    np.testing.assert_allclose(expected_table[others], decay * initial[others], rtol=1e-6)
    moments = [leaf.shape for leaf in jax.tree.leaves(found["opt_state"])]
    assert moments.count((4096, MODEL.hidden_size)) == 2
    assert (VOCAB_SIZE, MODEL.hidden_size) not in moments


@pytest.mark.parametrize(
    ("token_ids", "config", "num_rows"),
    [
        (IDS, experiment(), 4096),
        (np.arange(4096), experiment(), 4096),
        (np.arange(4097), experiment(), None),
        (None, experiment(), None),
        (IDS, experiment(Lamb()), None),
        (IDS, experiment(tuning=TuningConfig(frozen=("encoder/embeddings/**",))), None),
        (IDS, experiment(tuning=TuningConfig(weight_anchor=EWC(fisher="f"))), None),
    ],
)
def test_when_rows_are_chosen(token_ids, config, num_rows):
    params = paths.unflatten({TABLE: jax.ShapeDtypeStruct((VOCAB_SIZE, 4), "float32")})
    rows = choose_token_rows(config, params, lambda: token_ids)
    assert (None if rows is None else len(rows)) == num_rows
    with_head = {**params, "heads": {"task": {"masked_lm": {"bias": None}}}}
    assert choose_token_rows(config, with_head, lambda: token_ids) is None
    if rows is not None:
        assert (np.diff(rows) > 0).all() and set(token_ids) <= set(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_workload_knows_the_token_ids_of_its_batches(kind, task_experiment):
    experiment = task_experiment(kind)
    workload = make_workload(experiment)
    with workload.loader(0, 0) as loader:
        epoch = -(-loader.examples_per_epoch // 16)
        name = "choice_input_ids" if kind == "multiple_choice" else "input_ids"
        batches = [next(iter(loader))[name] for _ in range(epoch)]
    special = load_tokenizer(experiment.data.tokenizer).special_ids
    found = set(np.concatenate([batch.ravel() for batch in batches]).tolist())
    token_ids = workload.training_token_ids()
    assert token_ids is not None and found | special == set(token_ids.tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Returns a folder with a model of a large vocabulary, and pairs of texts."""
    folder = tmp_path_factory.mktemp("large")
    num_unused = VOCAB_SIZE - len(SPECIAL_TOKENS) - len(WORDS)
    words = (*(f"unused{number}" for number in range(num_unused)), *WORDS)
    tokenizer = word_tokenizer(folder / "words", words)
    config = small_config(
        vocab_size=VOCAB_SIZE,
        num_hidden_layers=1,
        positions=LearnedPositions(max_position_embeddings=40),
    )
    imported = ImportedModel(random_parameters(config), config, tokenizer, None)
    export(build_model(imported, "model"), folder / "model")
    draw, texts = random.Random(0), [word for word in WORDS if not word.startswith("##")]
    pairs = [" ".join(draw.choices(texts, k=4)) for _ in range(64)]
    lines = [f"{text},{text}\n" for text in pairs]
    (folder / "pairs.csv").write_text("".join(("first,second\n", *lines)))
    return folder


# Between the lowest unused tokens, which fill the number of rows, and the words, which are last.
OTHERS = slice(4096, VOCAB_SIZE - len(WORDS))


def table_of_run(folder: Path) -> np.ndarray:
    return paths.flatten(restore_params(folder / "checkpoints")[0])[TABLE]


def test_a_resumed_run_trains_the_same_rows(folder, tmp_path, caplog, monkeypatch):
    changes = ["train.phases.0.steps=6", "train.checkpoints.save_every=3"]
    config = override(small_experiment("classification", folder), changes)
    with one_device_mesh(), caplog.at_level("INFO"):
        assert run(config, tmp_path / "run") == 0
        assert "4,096 of 8,192 rows are trained" in caplog.text
        shutil.copytree(tmp_path / "run", tmp_path / "resumed")
        shutil.rmtree(tmp_path / "resumed/checkpoints/6")
        assert run(config, tmp_path / "resumed") == 0
    assert_same_parameters(tmp_path / "run", tmp_path / "resumed", 6)
    initial = paths.flatten(load_encoder(folder / "model").params)[TABLE]
    table = table_of_run(tmp_path / "run")
    np.testing.assert_array_equal(table[OTHERS], initial[OTHERS])
    assert not np.array_equal(table[-len(WORDS) :], initial[-len(WORDS) :])
    other_rows = np.arange(4096, dtype=np.int32)
    monkeypatch.setattr("bert_jax.train.step.choose_token_rows", lambda *_: other_rows)
    with one_device_mesh(), pytest.raises(UserError, match="training on other tokens than"):
        run(config, tmp_path / "resumed")


@pytest.mark.parametrize(
    ("loss", "chunk_size"), [(MultipleNegativesRankingLoss(), 8), (MaxSimRankingLoss(), None)]
)
def test_embeddings_are_trained_as_in_the_whole_table(
    folder, tmp_path, monkeypatch, loss, chunk_size
):
    """The texts are packed into rows for the first loss; queries are expanded for the second."""
    config = sentence_embedding_experiment(
        TextFile(path=f"{folder}/pairs.csv", texts=("first", "second")),
        f"{folder}/model",
        loss,
        batch_size=16,
        chunk_size=chunk_size,
        learning_rate=1e-3,
    )
    with one_device_mesh():
        assert run(config, tmp_path / "rows") == 0
        monkeypatch.setattr("bert_jax.train.step.choose_token_rows", lambda *_: None)
        assert run(config, tmp_path / "whole") == 0
    initial = paths.flatten(load_encoder(folder / "model").params)[TABLE]
    found, expected = table_of_run(tmp_path / "rows"), table_of_run(tmp_path / "whole")
    for trained in (slice(0, 4096 - len(WORDS)), slice(-len(WORDS), None)):
        np.testing.assert_allclose(found[trained], expected[trained], atol=1e-5)
    np.testing.assert_array_equal(found[OTHERS], initial[OTHERS])
    changed = np.abs(found - initial).max(axis=1) > 1e-4
    assert changed.sum() > 10
    assert changed[-len(WORDS) :].any()
    # Decay moves rows less than gradients do.
    np.testing.assert_array_equal(np.abs(expected - initial).max(axis=1) > 1e-4, changed)
