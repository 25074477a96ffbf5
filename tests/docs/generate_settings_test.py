"""Covers docs/generate_settings.py: every setting is in the docs, and what is said of flags holds.

A setting is a field of a config, an argument of a recipe, or an environment variable.
"""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from bert_jax.__main__ import parse_command
from bert_jax.apps.testing.models import small_model
from bert_jax.cli import embed_train, finetune, pretrain
from bert_jax.config import config_lib
from bert_jax.config.flags import flag_name
from bert_jax.export.export import export
from docs import generate_settings

ROOT = Path(__file__).parents[2]
# Dataclasses that no config file holds: parts of a parsed template, and layers of a family.
NO_SETTINGS = {
    *("LiteralPart", "TextPart", "MaskPart"),
    *("GlobalFirstToken", "GlobalBeforeSeparator", "GlobalAfterSeparator"),
    *("PoolerClassifier", "DenseClassifier", "PredictionHeadClassifier", "LinearClassifier"),
    *("CurationUnit",),
}


def test_every_field_and_argument_has_a_meaning():
    assert not generate_settings.missing()


def test_pages_are_up_to_date():
    for page, text in (
        (generate_settings.CONFIGS_PAGE, generate_settings.render_configs()),
        (generate_settings.RECIPES_PAGE, generate_settings.render_recipes()),
    ):
        assert page.read_text() == text, "run `make format`"


def test_every_dataclass_of_the_config_modules_is_on_the_page():
    modules = [
        *ROOT.glob("bert_jax/config/*.py"),
        *ROOT.glob("bert_jax/models/**/config.py"),
        *ROOT.glob("bert_jax/apps/*/config.py"),
        ROOT / "bert_jax/apps/curate/plan.py",
    ]
    names = set()
    for file in modules:
        module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        names |= {
            name
            for name, value in vars(module).items()
            if isinstance(value, type)
            and dataclasses.is_dataclass(value)
            and value.__module__ == module.__name__
        }
    page = generate_settings.CONFIGS_PAGE.read_text()
    assert len(names) > 140
    assert names - set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == NO_SETTINGS


def test_rows_of_a_class_name_each_of_its_fields():
    page = generate_settings.CONFIGS_PAGE.read_text()
    sections = page.split("\n### ")
    for cls in generate_settings.configs():
        section = next(s for s in sections if s.startswith(f"{cls.__name__}\n"))
        for name in generate_settings.own_fields(cls):
            # Two classes are called Prompt, and `next` finds the first one only.
            assert f"\n| `{name}` | " in section or cls.__name__ == "Prompt", f"{cls}.{name}"


def test_table_of_flags_has_fields_and_flags_that_exist():
    fields = {
        f"{cls.__name__}.{name}"
        for cls in generate_settings.configs()
        for name in generate_settings.own_fields(cls)
    }
    verbs = (finetune, embed_train, pretrain)
    known = {flag_name(f.name) for verb in verbs for f in dataclasses.fields(verb.Arguments)}
    flags = {each for text in generate_settings.FLAGS.values() for each in text.split(", ")}
    assert set(generate_settings.FLAGS) <= fields
    assert flags - known == {"TASK", "--arg parallelism"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settings")
    export(small_model(folder / "vocabulary"), folder / "model")
    (folder / "train.csv").write_text(
        "text,more,label\n" + "the sea,a net,yes\na net,the sea,no\n" * 2
    )
    return folder


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ("--seed 7", ["Experiment.seed"]),
        ("--epochs 5", ["Phase.steps"]),
        ("--batch-size 1", ["Phase.batch_size"]),
        ("--max-length 12", ["Phase.seq_length"]),
        ("--learning-rate 1e-3", ["WarmupLinear.peak_learning_rate"]),
        ("--label-smoothing 0.1", ["FineTuning.label_smoothing"]),
        ("--class-weights yes=3,no=1", ["FineTuning.class_weights"]),
        ("--dev {0}/train.csv --metric loss", ["Columns.dev", "CheckpointConfig.best_metric"]),
        ("--dev {0}/train.csv --patience 2", ["CheckpointConfig.early_stopping_patience"]),
        ("--truncation tail", ["FineTuningData.truncation"]),
        ("--frozen-encoder", ["TuningConfig.frozen", "TuningConfig.features"]),
        ("--method lora --rank 3", ["TuningConfig.method", "LoRA.rank"]),
        ("--method lora --alpha 3", ["LoRA.alpha"]),
        ("--method lora --dropout 0.5", ["LoRA.dropout"]),
        ("--method lora --target key", ["LoRA.targets"]),
        ("--text-pair more", ["Columns.text_pair"]),
        ("--encoding latin-1", ["Columns.encoding"]),
        ("--dev {0}/train.csv --shots 1 --split-seed 3", ["FewShot.shots", "FewShot.seed"]),
    ],
)
def test_flags_of_fine_tuning_set_the_fields_they_are_listed_with(folder, flags, fields):
    words = f"finetune --train {folder}/train.csv --text text --label label --run r".split()
    words += ["--model", f"{folder}/model"]
    plain = finetune.make_experiment(parse_command(words))
    given = finetune.make_experiment(parse_command([*words, *flags.format(folder).split()]))
    changed = {path for path, _, _ in config_lib.diff(*map(config_lib.to_json, (plain, given)))}
    for field in fields:
        name = field.partition(".")[2]
        assert any(re.search(rf"\.{name}(\.|$)|^{name}$", path) for path in changed), changed
        used = generate_settings.FLAGS[field].split(", ")
        assert any(flag in flags.split() for flag in used)


def test_every_environment_variable_of_the_code_is_in_the_docs():
    page = (ROOT / "docs/reference/environment.md").read_text()
    names: set[str] = set()
    for folder in ("bert_jax", "tpu", "configs"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".sh"):
                text = file.read_text()
                names |= set(
                    re.findall(r"""["']((?:BERT|XDG|GLIBC|TPU|HF|JAX|TF)_\w+)["']""", text)
                )
                names |= set(re.findall(r"\$\{(BERT_\w+)", text))
                names |= set(re.findall(r"environ(?:\.get\(|\[)[\"'](\w+)", text))
    names = {name for name in names if name.isupper()} - {"PATH"}
    assert {"BERT_JAX_COORDINATOR", "BERT_TPU_VERB", "XDG_CACHE_HOME"} <= names
    assert not {name for name in names if f"`{name}`" not in page}
