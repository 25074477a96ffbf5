"""Covers bert_jax/train/presets.py and class_weights.py; other tests run such experiments."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from bert_jax import __main__ as cli
from bert_jax.apps.testing.models import small_model
from bert_jax.cli import finetune
from bert_jax.config.data import FineTuningData
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Conll, TaskConfig
from bert_jax.config.objectives import FineTuning
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.errors import ConfigError
from bert_jax.export.export import export
from bert_jax.train.class_weights import class_weights
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


def labeled_task(kind: str, labels: tuple[str, ...], values: list) -> Task:
    examples = tuple(
        TextExample(id=str(n), text=f"text {n}", label=value) for n, value in enumerate(values)
    )
    return Task(name="made", kind=kind, labels=labels, metrics=(), splits={"train": examples})


def test_balanced_class_weights_are_those_of_scikit_learn():
    values = ["a"] * 7 + ["b"] * 2 + ["c"]
    task = labeled_task("classification", ("a", "b", "c"), values)
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=values)
    np.testing.assert_allclose(class_weights("balanced", task), expected)


def test_balanced_weights_of_labels_give_both_sides_the_same_sum():
    values = [("a",), ("a", "b"), ("a",), (), ()]
    weights = class_weights("balanced", labeled_task("multi-label", ("a", "b", "c"), values))
    assert weights == pytest.approx((2 / 3, 4.0, 1.0))
    has_b = np.array(["b" in value for value in values])
    balanced = compute_sample_weight("balanced", has_b)
    assert balanced[has_b][0] / balanced[~has_b][0] == pytest.approx(weights[1])


def test_class_weights_are_read_by_position_or_by_label():
    task = labeled_task("classification", ("a", "b", "c"), ["a", "b", "c"])
    assert class_weights("1,2,0.5", task) == (1, 2, 0.5)
    assert class_weights("b=3", task) == (1, 3, 1)
    for text, message in (
        ("1,2", "found 2 numbers, expected 3, for the labels a, b, c"),
        ("d=3", "there is no label 'd'"),
        ("a=much", "expected balanced, numbers as in 1,3"),
    ):
        with pytest.raises(ConfigError, match=message):
            class_weights(text, task)
    with pytest.raises(ConfigError, match="a regression task, which has no classes"):
        class_weights("balanced", labeled_task("regression", (), []))


@pytest.mark.parametrize(("num_rare", "metric"), [(1, "f1_macro"), (4, "accuracy")])
def test_rare_class_makes_macro_f1_rank_checkpoints(folder, tmp_path, num_rare, metric):
    labels = ["rare"] * num_rare + ["usual"] * (20 - num_rare)
    rows = "".join(f"the sea {n},{label}\n" for n, label in enumerate(labels))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + rows)
    files = [f"--{split}={tmp_path / split}.csv" for split in ("train", "dev")]
    train = experiment(folder, *files).train
    assert (train.checkpoints.best_metric, train.checkpoints.best_mode) == (metric, "max")
    chosen = ["--metric", "loss", "--patience", "3", "--label-smoothing", "0.1"]
    config = experiment(folder, *files, *chosen, "--class-weights", "rare=2")
    checkpoints = config.train.checkpoints
    assert (checkpoints.best_metric, checkpoints.best_mode) == ("loss", "min")
    assert checkpoints.early_stopping_patience == 3
    assert isinstance(config.objective, FineTuning)
    assert config.objective.class_weights == (2, 1) and config.objective.label_smoothing == 0.1


def test_smaller_squared_errors_are_better(folder, tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\n" + "a net,1.5\nthe sea,2.5\n" * 4)
    files = [f"--{split}={tmp_path}/rows.csv" for split in ("train", "dev")]
    checkpoints = experiment(folder, *files, "--metric", "mse").train.checkpoints
    assert (checkpoints.best_metric, checkpoints.best_mode) == ("mse", "min")


def test_metric_without_a_dev_split_is_refused(folder):
    with pytest.raises(ConfigError, match="metric is loss, but there is no labeled dev split"):
        experiment(folder, "--metric", "loss")
