"""Compares each head of an exported multi-task run with its Hugging Face PyTorch class."""

import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import small_model
from bert_jax.config.config_lib import override
from bert_jax.config.objectives import MultiTask, UncertaintyWeighting
from bert_jax.export.export import export
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.objectives.multi_task import task_params
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.train.presets import multi_task_experiment
from bert_jax.train.run import run
from tests.helpers.one_device import one_device_mesh
from tests.helpers.task_runs import TASKS
from tests.helpers.torch_parity import load_exported
from tests.parity.fine_tuning_heads_test import assert_same, jax_predictions, torch_predictions

transformers = pytest.importorskip("transformers")
# The fast tests export a task of a run (train/workloads/multi_task_test.py), and compare the
# folders of the same heads with PyTorch (fine_tuning_heads_test.py).
pytestmark = pytest.mark.slow

KINDS = {
    "classification": "SequenceClassification",
    "regression": "SequenceClassification",
    "token_classification": "TokenClassification",
    "question_answering": "QuestionAnswering",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains for a few updates, so that the heads differ from their initialization."""
    folder = tmp_path_factory.mktemp("mixture")
    model = small_model(
        folder / "vocabulary",
        num_hidden_layers=1,
        positions=LearnedPositions(max_position_embeddings=40),
        initializer_range=0.2,
    )
    export(model, folder / "model")
    config = multi_task_experiment(
        {kind: TASKS[kind](folder) for kind in KINDS},
        str(folder / "model"),
        weighting=UncertaintyWeighting(),
        epochs=0.2,
        batch_size=16,
        learning_rate=1e-2,
    )
    changes = [
        "data.bucket_lengths=[]",
        "train.checkpoints.best_metric=null",
        "train.evaluation=null",
    ]
    with one_device_mesh():
        assert run(override(config, changes), folder / "run") == 0
    return folder / "run", config.objective


@pytest.mark.parametrize("kind", KINDS)
def test_exported_task_gives_the_same_logits_in_pytorch(trained, kind, tmp_path):
    folder, program = trained
    assert isinstance(program, MultiTask)
    export(load_encoder(folder, kind), tmp_path / kind)
    model = load_exported(getattr(transformers, f"AutoModelFor{KINDS[kind]}"), tmp_path / kind)
    params = task_params(restore_params(folder / "checkpoints")[0], kind)
    head = program.for_task(kind).head
    batch = fine_tuning_batch(
        head, batch_size=6, seq_length=16, vocab_size=18, num_padding_examples=1
    )
    found = jax_predictions(params, program.model, head, batch)
    assert_same(found, torch_predictions(model.eval(), batch))
