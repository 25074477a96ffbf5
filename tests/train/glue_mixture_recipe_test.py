"""Tests configs/finetune/glue_mixture.py: selected tasks, kinds of mixing, errors."""

from pathlib import Path

import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.config.labeled_data import (
    CappedMixing,
    EqualMixing,
    Glue,
    ProportionalMixing,
    TemperatureMixing,
)
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.errors import ConfigError
from bert_jax.export.export import export
from bert_jax.models.layers.config import LearnedPositions

RECIPE = str(Path(__file__).parents[2] / "configs/finetune/glue_mixture.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    export(
        small_model(folder / "vocabulary", positions=LearnedPositions(max_position_embeddings=40)),
        folder / "model",
    )
    return str(folder / "model")


@pytest.fixture
def recipe(model, tmp_path):
    for name, columns in (("RTE", "sentence1 sentence2"), ("WNLI", "sentence1 sentence2")):
        (tmp_path / name).mkdir()
        labels = ("entailment", "not_entailment") if name == "RTE" else ("0", "1")
        for split in ("train", "dev"):
            rows = [f"{n}\tthe old man {n}\tthe sea\t{labels[n % 2]}" for n in range(40)]
            head = "\t".join(["index", *columns.split(), "label"])
            (tmp_path / name / f"{split}.tsv").write_text("\n".join([head, *rows]) + "\n")

    def get(*arguments: str):
        given = [f"model={model}", f"glue_dir={tmp_path}", "max_length=32", *arguments]
        return call_recipe(load_recipe(RECIPE), given, RECIPE)

    return get


@pytest.mark.parametrize(
    "arguments, mixing",
    [
        ("mixing=equal", EqualMixing()),
        ("mixing=proportional", ProportionalMixing()),
        ("temperature=3", TemperatureMixing(temperature=3.0)),
        ("mixing=capped max_examples=20", CappedMixing(max_examples=20)),
    ],
)
def test_arguments_select_tasks_and_mixing(recipe, arguments, mixing):
    experiment = recipe("tasks=wnli,rte", "batch_size=32", "epochs=3", *arguments.split())
    assert [each.name for each in experiment.data.tasks] == ["wnli", "rte"]
    assert all(isinstance(each.task, Glue) for each in experiment.data.tasks)
    assert experiment.data.mixing == mixing
    (phase,) = experiment.train.phases
    assert (phase.batch_size, phase.seq_length, phase.steps) == (
        32,
        32,
        9,
    )  # 3 epochs of 80 examples


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("batch_size=48", "expected a multiple of 32.*the next is 64"),
        ("tasks=rte,ax", "'ax' is not one of cola, .*or is repeated"),
        ("tasks=rte,rte", "'rte' is not one of"),
        ("tasks=", "'' is not one of"),
        ("mixing=dice", "expected one of 'equal'"),
        ("mixin=equal", "did you mean 'mixing'"),
    ],
)
def test_invalid_arguments_are_rejected(recipe, arguments, message):
    with pytest.raises(ConfigError, match=message):
        recipe(arguments)
