"""Each head of a multi-task run, exported, against Hugging Face's PyTorch class for it."""

import pytest

from bert_jax.config import override
from bert_jax.models.config import Learned
from bert_jax.programs.config import MultiTask, Uncertainty
from bert_jax.programs.multi_task import single_task
from bert_jax.testing.batches import fine_tuning_batch
from bert_jax.testing.models import small_model
from bert_jax.train.checkpoint import restore_params
from bert_jax.train.export import export
from bert_jax.train.fine_tuning import multi_task
from bert_jax.train.pretrained import load_model
from bert_jax.train.run import run
from tests.parity.fine_tuning_heads_test import assert_same, our_predictions, their_predictions
from tests.train.conftest import TASKS

transformers = pytest.importorskip("transformers")

KINDS = {
    "classification": "SequenceClassification",
    "regression": "SequenceClassification",
    "tagging": "TokenClassification",
    "question_answering": "QuestionAnswering",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a few updates, so that every head has moved, each in its own direction."""
    folder = tmp_path_factory.mktemp("mixture")
    model = small_model(
        folder / "vocabulary", positions=Learned(max_length=40), initializer_range=0.2
    )
    export(model, folder / "model")
    config = multi_task(
        {kind: TASKS[kind](folder) for kind in KINDS},
        str(folder / "model"),
        weighting=Uncertainty(),
        epochs=0.2,
        batch_size=16,
        learning_rate=1e-2,
    )
    keep = ["data.buckets=[]", "train.checkpoints.keep_best=null", "train.evaluation=null"]
    assert run(override(config, keep), folder / "run") == 0
    return folder / "run", config.program


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_task_gives_the_same_logits_in_pytorch(trained, kind, tmp_path):
    folder, program = trained
    assert isinstance(program, MultiTask)
    export(load_model(folder, kind), tmp_path / kind)
    model, told = getattr(transformers, f"AutoModelFor{KINDS[kind]}").from_pretrained(
        tmp_path / kind, output_loading_info=True, attn_implementation="eager"
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not told[problem], problem
    params = single_task(restore_params(folder / "checkpoints")[0], kind)
    head = program.single(kind).head
    batch = fine_tuning_batch(head, batch_size=6, length=16, vocab_size=18, filling=1)
    found = our_predictions(params, program.model, head, batch)
    assert_same(found, their_predictions(model.eval(), batch))
