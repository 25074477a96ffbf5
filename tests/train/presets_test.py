"""Covers bert_jax/train/presets.py and class_weights.py; other tests run such experiments."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from bert_jax import __main__ as cli
from bert_jax.apps.testing.models import small_model
from bert_jax.cli import finetune
from bert_jax.config.data import FineTuningData, MultiTaskData
from bert_jax.config.embedding_losses import (
    CosineSimilarityLoss,
    MaxSimRankingLoss,
    MultipleNegativesRankingLoss,
    SpladeLoss,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Columns, Conll, TaskConfig, Windows
from bert_jax.config.objectives import FineTuning
from bert_jax.config.sentence_embeddings import SentenceEmbedding, SentenceEmbeddingData, TextFile
from bert_jax.config.tuning import TuningConfig
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.errors import ConfigError
from bert_jax.export.export import export
from bert_jax.models.adapters.config import PromptTuning
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.train.class_weights import class_weights
from bert_jax.train.presets import (
    fine_tuning_experiment,
    multi_task_experiment,
    sentence_embedding_experiment,
)


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


@pytest.fixture(scope="module")
def long_model(folder: Path) -> str:
    positions = LearnedPositions(max_position_embeddings=270)
    model = small_model(folder / "vocabulary", positions=positions)
    export(model, folder / "long")
    return str(folder / "long")


def columns_of(folder: Path, *num_words: int) -> Columns:
    rows = (f"{'sea ' * n},{label}\n" for n in num_words for label in ("yes", "no"))
    (folder / "train.csv").write_text("text,label\n" + "".join(rows))
    return Columns(train=f"{folder}/train.csv", text="text", label="label")


# With [CLS] and [SEP], the longest text has 45 or 202 tokens; 202 are rounded up to 208.
@pytest.mark.parametrize(
    ("num_words", "settings", "length", "buckets"),
    [
        ((5, 5, 43), {}, 128, (8, 48, 96)),
        ((5, 5, 200), {}, 208, (8,)),
        ((5, 5, 200), {"batch_size": 64}, 208, (8,)),
        ((5, 5, 400), {"batch_size": 4}, 256, (8,)),
        ((5, 5, 400), {"batch_size": 4, "tuning": TuningConfig(method=PromptTuning())}, 250, (8,)),
        ((5, 5, 200), {"truncation": Windows()}, 128, (8, 80)),
        ((5, 5, 200), {"max_length": 64}, 64, (8,)),
    ],
)
def test_lengths_are_those_of_the_data(long_model, tmp_path, num_words, settings, length, buckets):
    config = fine_tuning_experiment(columns_of(tmp_path, *num_words), long_model, **settings)
    assert isinstance(config.data, FineTuningData)
    assert (config.train.phases[0].seq_length, config.data.bucket_lengths) == (length, buckets)


def test_short_runs_have_few_lengths(long_model, tmp_path):
    config = fine_tuning_experiment(columns_of(tmp_path, 5, 5, 43), long_model, epochs=1)
    assert isinstance(config.data, FineTuningData)
    assert config.data.bucket_lengths == (48, 96)


def test_default_length_is_logged(long_model, tmp_path, caplog):
    caplog.set_level("INFO", "bert_jax.train.presets")
    fine_tuning_experiment(columns_of(tmp_path, 5, 5, 43), long_model, epochs=200)
    fine_tuning_experiment(columns_of(tmp_path, 5, 5, 400), long_model, epochs=200)
    fine_tuning_experiment(columns_of(tmp_path, 5, 400), long_model, epochs=200, max_length=64)
    assert caplog.messages == [
        "maximum length: 128 tokens (longest training example: 45); training batches have rows of "
        "8 or 48 tokens; change the maximum with --max-length",
        "maximum length: 256 tokens (2 training examples are longer); training batches have rows "
        "of 8 or 256 tokens; change the maximum with --max-length",
    ]


@pytest.mark.parametrize(("given", "length"), [(None, 208), (64, 64)])
def test_lengths_of_several_tasks_are_those_of_the_longest(long_model, tmp_path, given, length):
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
    tasks: dict[str, TaskConfig] = {
        "short": columns_of(tmp_path / "short", 5),
        "long": columns_of(tmp_path / "long", 200),
    }
    config = multi_task_experiment(tasks, long_model, max_length=given, batch_size=16)
    assert isinstance(config.data, MultiTaskData)
    assert (config.train.phases[0].seq_length, config.data.bucket_lengths) == (length, (8,))


@pytest.mark.parametrize(
    ("loss", "num_words", "expected"),
    [
        (SpladeLoss(), (5, 30), 8),
        (SpladeLoss(), (5, 12), None),  # 14 tokens are not twice 8
        (SpladeLoss(), (30, 5), None),
        (MaxSimRankingLoss(), (5, 30), None),
        (MultipleNegativesRankingLoss(), (5, 30), None),  # its texts share rows
    ],
)
def test_short_first_texts_have_a_length_of_their_own(
    long_model, tmp_path, loss, num_words, expected
):
    rows = "".join(f"{n} {'a ' * (num_words[0] - 1)},{n} {'sea ' * num_words[1]}\n" for n in "12")
    (tmp_path / "train.csv").write_text("one,two\n" + rows)
    file = TextFile(path=f"{tmp_path}/train.csv", texts=("one", "two"))
    config = sentence_embedding_experiment(file, long_model, loss, batch_size=2)
    assert isinstance(config.objective, SentenceEmbedding)
    assert config.objective.first_text_length == expected


@pytest.mark.parametrize(
    ("loss", "num_words", "read", "length", "buckets"),
    [
        # Rows of 48 tokens would be half empty in batches of two short pairs.
        (CosineSimilarityLoss(), [5, 5, 5, 43], None, 128, (8, 48, 96)),
        (MultipleNegativesRankingLoss(), [43, 43, 43, 5], None, 128, (48, 96)),
        (CosineSimilarityLoss(), [5, 5, 5, 200], None, 208, (8,)),
        (CosineSimilarityLoss(), [5, 5, 5, 200], 64, 64, (8,)),
    ],
)
def test_lengths_of_texts_to_embed(long_model, tmp_path, loss, num_words, read, length, buckets):
    has_scores = isinstance(loss, CosineSimilarityLoss)
    rows = "".join(f"{n} {'sea ' * (size - 1)},the {n},1\n" for n, size in enumerate(num_words))
    (tmp_path / "train.csv").write_text("one,two,score\n" + rows)
    file = TextFile(
        path=f"{tmp_path}/train.csv", texts=("one", "two"), score="score" if has_scores else None
    )
    encoder = SentenceEncoderConfig(max_seq_length=read)
    config = sentence_embedding_experiment(
        file, long_model, loss, epochs=100, batch_size=2, sentence_encoder=encoder
    )
    assert isinstance(config.data, SentenceEmbeddingData)
    assert isinstance(config.objective, SentenceEmbedding)
    assert config.objective.sentence_encoder.max_seq_length == length
    assert (config.train.phases[0].seq_length, config.data.bucket_lengths) == (length, buckets)


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
