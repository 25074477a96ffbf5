"""Tests that the number of updates of a fine-tuning run is that of its windows.

Covers bert_jax/train/presets.py and the flag --window-overlap of bert_jax/cli/finetune.py; other
tests run such experiments.
"""

from pathlib import Path

import pytest

from bert_jax import __main__ as cli
from bert_jax.apps.testing.models import small_model
from bert_jax.cli import finetune
from bert_jax.config.data import FineTuningData
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Conll, TaskConfig
from bert_jax.errors import ConfigError
from bert_jax.export.export import export
from bert_jax.train.presets import multi_task_experiment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("presets")
    export(small_model(folder / "vocabulary"), folder / "model")
    (folder / "train.csv").write_text(f"text,label\n{'sea ' * 40},yes\n{'net ' * 4},no\n")
    return folder


def experiment(folder: Path, *flags: str) -> Experiment:
    words = f"--train {folder}/train.csv --text text --label label --model {folder}/model --run r"
    # With [CLS] and [SEP], a sequence has 16 tokens of a text.
    sizes = "--epochs 1 --batch-size 1 --max-length 18"
    command = ["finetune", "columns", *words.split(), *sizes.split(), *flags]
    return finetune.make_experiment(cli.parse_command(command))


# Windows of 16 tokens over 40 start every 14 or every 8 tokens; the other text is one window.
@pytest.mark.parametrize(("overlap", "windows"), [(2, 3 + 1), (8, 4 + 1)])
def test_updates_are_those_of_windows_with_the_chosen_overlap(folder, overlap, windows):
    config = experiment(folder, "--truncation", "windows", "--window-overlap", str(overlap))
    assert isinstance(config.data, FineTuningData) and config.data.window_overlap == overlap
    assert config.train.phases[0].steps == windows


def test_overlap_for_texts_without_windows_is_refused(folder):
    message = "--window-overlap 2: texts of columns are not cut into"
    with pytest.raises(ConfigError, match=message):
        experiment(folder, "--window-overlap", "2")


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("columns", "--window-overlap TOKENS"),
        ("--config=multi_task", "--arg window_overlap=TOKENS"),
    ],
)
def test_overlap_is_not_set_after_updates_were_counted(source, advice):
    command = ["finetune", source, "--run", "r", "--set", "data.window_overlap=2"]
    with pytest.raises(ConfigError, match=f"applied after the updates are counted; use {advice}"):
        cli.parse_command(command)


def test_updates_of_several_tasks_are_those_of_windows(folder):
    (folder / "ner.train").write_text("sea O\n" * 39 + "net B-X\n\n")
    tasks: dict[str, TaskConfig] = {"ner": Conll(train=str(folder / "ner.train"))}

    def num_updates(overlap: int) -> int:
        config = multi_task_experiment(
            tasks,
            str(folder / "model"),
            window_overlap=overlap,
            max_length=18,
            batch_size=1,
            epochs=1,
        )
        return config.train.steps

    assert (num_updates(2), num_updates(8)) == (3, 4)
