"""Configs: JSON both ways, overrides, errors that name the nearest field, recipes."""

import dataclasses

import pytest

from bert_jax import config
from bert_jax.data.config import LoaderConfig, Packed, Single
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.models.config import Compute, GeluTanh, RematLayer, Scanned, bert
from bert_jax.programs.config import LeftToRight, Pretraining
from bert_jax.train.config import Lamb, Phase, Train, WarmupLinear


def experiment() -> Experiment:
    return Experiment(
        name="test",
        program=Pretraining(
            model=dataclasses.replace(bert("tiny", vocab_size=100), activation=GeluTanh()),
            mask_token_id=4,
            compute=Compute(layers=Scanned(), remat=RematLayer()),
        ),
        data=LoaderConfig(prepared="data", examples=Packed(), masking=None),
        train=Train(
            phases=(Phase(steps=10, length=64, batch_size=8, max_predictions=10),),
            optimizer=Lamb(),
            schedule=WarmupLinear(warmup_steps=2),
        ),
    )


def test_json_round_trip_is_the_same_config():
    original = experiment()
    data = config.to_json(original)
    assert config.from_json(Experiment, data) == original
    assert data["program"]["compute"]["layers"] == {"type": "Scanned"}


def test_another_program_keeps_its_type():
    original = dataclasses.replace(
        experiment(), program=LeftToRight(model=bert("tiny", vocab_size=9))
    )
    assert config.from_json(Experiment, config.to_json(original)) == original


def test_override_sets_nested_fields_and_types():
    changed = config.override(
        experiment(),
        [
            "seed=7",
            "train.schedule.peak=2e-4",
            "train.phases.0.steps=20",
            'data.examples={"type": "Single"}',
            "train.clip_norm=2",
        ],
    )
    assert changed.seed == 7
    assert changed.train.schedule.peak == 2e-4
    assert changed.train.phases[0].steps == 20
    assert isinstance(changed.data, LoaderConfig) and changed.data.examples == Single()
    assert changed.train.clip_norm == 2.0
    assert isinstance(changed.train.clip_norm, float)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.shedule.peak=1", "did you mean 'schedule'"),
        ("train.schedule.peek=1", "did you mean 'peak'"),
        ("seed=abc", "expected int"),
        ("seed", "expected FIELD=VALUE"),
        ("train.phases.3.steps=1", "not an index below 1"),
        ('data.examples={"type": "Pickle"}', "unknown type 'Pickle'"),
        ("program.compute.dtype=float16", "float16"),
        ("name.x=1", "beyond the last field"),
    ],
)
def test_override_errors_name_the_mistake(assignment, message):
    with pytest.raises(ConfigError, match=message):
        config.override(experiment(), [assignment])


def test_diff_and_fingerprint_see_one_changed_field():
    first = experiment()
    second = config.override(first, ["seed=1"])
    assert config.diff(config.to_json(first), config.to_json(second)) == [("seed", 0, 1)]
    assert config.fingerprint(first) == config.fingerprint(experiment())
    assert config.fingerprint(first) != config.fingerprint(second)


def test_recipe_arguments_are_typed_and_checked(tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "def get_config(*, steps: int, size: str = 'tiny'):\n    return (steps, size)\n"
    )
    get_config = config.load_recipe(recipe)
    assert config.call_recipe(get_config, ["steps=3", "size=8"], "recipe.py") == (3, "8")
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        config.call_recipe(get_config, ["step=3"], "recipe.py")
    with pytest.raises(ConfigError, match="needs --with steps"):
        config.call_recipe(get_config, [], "recipe.py")
    with pytest.raises(ConfigError, match="expected int"):
        config.call_recipe(get_config, ["steps=many"], "recipe.py")
    with pytest.raises(ConfigError, match="no such recipe"):
        config.load_recipe(tmp_path / "absent.py")


def test_impossible_values_are_refused():
    with pytest.raises(ConfigError, match="multiple of"):
        dataclasses.replace(bert("tiny"), num_attention_heads=3)
    with pytest.raises(ConfigError, match="beyond the position table"):
        config.override(experiment(), ["program.model.positions.max_length=32"])
    with pytest.raises(ConfigError, match="one > 0"):
        config.override(experiment(), ["program.mlm_weight=0", "program.nsp_weight=0"])
    with pytest.raises(ConfigError, match="not an id below"):
        config.override(experiment(), ["program.mask_token_id=100"])
    with pytest.raises(ConfigError, match="leaves no step"):
        config.override(experiment(), ["train.schedule.warmup_steps=10"])
