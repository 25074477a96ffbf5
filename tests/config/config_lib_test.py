"""Tests configs: JSON round trips, overrides, errors that name the nearest field, recipes."""

import dataclasses

import pytest

from bert_jax.config import config_lib
from bert_jax.config.data import Masking, PackedSegments, PretrainingData, SingleSegment
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import CausalLM, Pretraining
from bert_jax.config.train import Lamb, Phase, TrainConfig, WarmupLinear
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.modernbert.config import ModernBertConfig


def experiment() -> Experiment:
    return Experiment(
        name="test",
        objective=Pretraining(
            model=dataclasses.replace(
                BertConfig.from_size("tiny", vocab_size=100), hidden_act="gelu_tanh"
            ),
            mask_token_id=4,
            compute=ComputeConfig(layer_loop="scanned", remat="full"),
        ),
        data=PretrainingData(corpus="data", input_format=PackedSegments(), masking=None),
        train=TrainConfig(
            phases=(Phase(steps=10, seq_length=64, batch_size=8, max_predictions_per_seq=10),),
            optimizer=Lamb(),
            schedule=WarmupLinear(warmup_steps=2),
        ),
    )


def test_json_round_trip_is_the_same_config():
    original = experiment()
    data = config_lib.to_json(original)
    assert config_lib.from_json(Experiment, data) == original
    assert data["objective"]["compute"]["layer_loop"] == "scanned"


def test_override_keeps_the_type_of_the_objective():
    original = dataclasses.replace(
        experiment(), objective=CausalLM(model=BertConfig.from_size("tiny", vocab_size=9))
    )
    assert config_lib.from_json(Experiment, config_lib.to_json(original)) == original


@pytest.mark.parametrize("order", [1, -1])
def test_override_changes_dependent_fields_together(order):
    masking = ["data.masking.mask_replace_prob=1", "data.masking.random_replace_prob=0"]
    changes = [
        *masking,
        "objective.model.positions.max_position_embeddings=64",
        "objective.model.positions=LearnedPositions",
        "train.phases.0.steps=20",
        "train.phases.0.batch_size=4",
    ]
    original = dataclasses.replace(experiment(), data=PretrainingData(corpus="data"))
    changed = config_lib.override(original, changes[::order])
    assert isinstance(changed.data, PretrainingData)
    assert isinstance(changed.data.masking, Masking)
    assert changed.data.masking.mask_replace_prob == 1.0
    assert changed.data.masking.random_replace_prob == 0.0
    (phase,) = changed.train.phases
    assert (phase.steps, phase.batch_size) == (20, 4)
    with pytest.raises(ConfigError, match="sum of at most 1"):
        config_lib.override(original, masking[:1])
    assert isinstance(changed.objective, Pretraining)
    assert changed.objective.model.positions.max_length == 64


def test_layers_of_modernbert_can_be_changed():
    model = ModernBertConfig(vocab_size=100)
    with pytest.raises(ConfigError, match=r"set model.layer_types to \[\] for full attention"):
        config_lib.override(model, ["num_hidden_layers=4"])
    changed = config_lib.override(model, ["num_hidden_layers=4", "layer_types=[]"])
    assert len(changed.layer_types) == 4


def test_override_sets_nested_fields_and_types():
    changed = config_lib.override(
        experiment(),
        [
            "seed=7",
            "train.schedule.peak_learning_rate=2e-4",
            "train.phases.0.steps=20",
            'data.input_format={"type": "SingleSegment"}',
            "train.max_grad_norm=2",
        ],
    )
    assert changed.seed == 7
    assert isinstance(changed.train.schedule, WarmupLinear)
    assert changed.train.schedule.peak_learning_rate == 2e-4
    assert changed.train.phases[0].steps == 20
    assert (
        isinstance(changed.data, PretrainingData) and changed.data.input_format == SingleSegment()
    )
    assert changed.train.max_grad_norm == 2.0
    assert isinstance(changed.train.max_grad_norm, float)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.shedule.peak_learning_rate=1", "did you mean 'schedule'"),
        ("train.schedule.peek_learning_rate=1", "did you mean 'peak_learning_rate'"),
        ("seed=abc", "expected int"),
        ("seed", "expected FIELD=VALUE"),
        ("train.phases.3.steps=1", "not an index below 1"),
        ("train.phases.0=5", "train.phases.0: expected Phase, found 5"),
        ('data.input_format={"type": "Pickle"}', "unknown type 'Pickle'"),
        ("objective.compute.dtype=float16", "float16"),
        ("name.x=1", "beyond the last field"),
    ],
)
def test_override_errors_name_the_mistake(assignment, message):
    with pytest.raises(ConfigError, match=message):
        config_lib.override(experiment(), [assignment])


def test_field_that_is_given_twice_is_an_error():
    with pytest.raises(ConfigError, match="--set seed is given twice, as '1' and '2'"):
        config_lib.override(experiment(), ["seed=1", "name=a", "seed=2"])


def test_diff_and_fingerprint_reflect_one_changed_field():
    first = experiment()
    second = config_lib.override(first, ["seed=1"])
    assert config_lib.diff(config_lib.to_json(first), config_lib.to_json(second)) == [
        ("seed", 0, 1)
    ]
    assert config_lib.fingerprint(first) == config_lib.fingerprint(experiment())
    assert config_lib.fingerprint(first) != config_lib.fingerprint(second)


def test_diff_ignores_the_spelling_of_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to("model")
    for other in (f"{tmp_path}/model", "./model/", "link", "link/../model"):
        assert config_lib.diff({"init_from": "model"}, {"init_from": other}) == []
    assert config_lib.diff({"files": ["books/*.txt"]}, {"files": ["./books/*.txt"]}) == []
    (tmp_path / "other").mkdir()
    for a, b in (("model", "other"), ("none", "./none"), ("model", None), ("", "."), ("a", "a\0")):
        assert config_lib.diff({"x": a}, {"x": b}) == [("x", a, b)]


def test_invalid_values_are_rejected():
    with pytest.raises(ConfigError, match="multiple of"):
        dataclasses.replace(BertConfig.from_size("tiny"), num_attention_heads=3)
    with pytest.raises(ConfigError, match="the model has positions for"):
        config_lib.override(experiment(), ["objective.model.positions.max_position_embeddings=32"])
    with pytest.raises(ConfigError, match="one > 0"):
        config_lib.override(experiment(), ["objective.mlm_weight=0", "objective.nsp_weight=0"])
    with pytest.raises(ConfigError, match="not an id below"):
        config_lib.override(experiment(), ["objective.mask_token_id=100"])
    with pytest.raises(ConfigError, match="expected fewer warmup steps"):
        config_lib.override(experiment(), ["train.schedule.warmup_steps=10"])
