"""Tests what training reads of long texts, and the pooling of the predictions for windows.

Covers bert_jax/tasks/long_texts.py and the truncations of bert_jax/config/labeled_data.py.
"""

import numpy as np
import pytest
from scipy.special import softmax

from bert_jax.apps.testing.models import word_tokenizer
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.data import FineTuningData
from bert_jax.config.labeled_data import (
    TRUNCATIONS,
    Columns,
    HeadTruncation,
    JointWindows,
    Windows,
    make_truncation,
    truncation_name,
)
from bert_jax.data.finetuning.example import TaggedExample, Task, TextExample
from bert_jax.data.finetuning.loader import FineTuningLoader
from bert_jax.errors import ConfigError
from bert_jax.tasks.features import make_features
from bert_jax.tasks.registry import kind_of

WORDS = tuple("abcdefghijklmnop")
LONG = "a b c d e f g h i j"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return word_tokenizer(tmp_path_factory.mktemp("vocabulary"), WORDS)


def task(*texts: str, kind: str = "classification") -> Task:
    labels = ("no", "yes") if kind == "classification" else ()
    examples = tuple(
        TextExample(id=str(index), text=text, label=labels[index % 2] if labels else 2.0 * index)
        for index, text in enumerate(texts)
    )
    return Task(name="t", kind=kind, labels=labels, metrics=("mse",), splits={"train": examples})


def words(vocabulary, input_ids) -> str:
    return "".join(vocabulary.id_to_token(int(token_id)) for token_id in input_ids[1:-1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("head", ["abcd", "p"]),
        ("tail", ["ghij", "p"]),
        ("head+tail", ["ahij", "p"]),
        ("windows", ["abcd", "defg", "ghij", "p"]),
    ],
)
def test_training_reads_the_chosen_part_of_a_long_text(vocabulary, name, expected):
    features = make_features(task(LONG, "p"), "train", vocabulary, 6, 1, make_truncation(name))
    assert [words(vocabulary, ids) for ids in features.input_ids] == expected
    assert features.num_truncated == (name != "windows")


def test_every_window_has_the_label_of_its_text(vocabulary):
    for kind, values in (("classification", [0, 0, 0, 1]), ("regression", [0.0, 0.0, 0.0, 2.0])):
        made = make_features(task(LONG, "p", kind=kind), "train", vocabulary, 6, 1, Windows())
        assert made.example_index.tolist() == [0, 0, 0, 1]
        assert list(made.targets.values()) == [values]


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_predictions_for_windows_are_pooled(vocabulary, pooling):
    labeled = task("p", LONG)
    made = make_features(labeled, "train", vocabulary, 6, 1, Windows(pooling=pooling))
    logits = np.random.default_rng(0).normal(size=(4, 2))
    decoded = kind_of(labeled).pool_outputs(made, {"logits": list(logits)})
    by_window = softmax(logits[1:], axis=-1)
    pooled = {"mean": by_window.mean(0), "max": by_window.max(0), "first": by_window[0]}[pooling]
    np.testing.assert_allclose(softmax(decoded[1]), pooled / pooled.sum(), atol=1e-12)
    np.testing.assert_array_equal(decoded[0], logits[0])


def test_joint_windows_of_a_text_are_one_sequence_of_the_batch(vocabulary):
    texts = task(LONG, "p", "a b c d e")
    made = make_features(texts, "train", vocabulary, 6, 1, JointWindows(num_windows=2))
    assert made.example_index.tolist() == [0, 1, 2] and made.num_truncated == 1
    assert made.targets == {"labels": [0, 1, 0]}
    loader = FineTuningLoader(made, [6], batch_size=4, seed=0, pad_id=0)
    batch = next(loader)
    rows = {
        tuple(words(vocabulary, ids[: mask.sum()]) for ids, mask in zip(row, masks, strict=True)): m
        for row, masks, m in zip(
            batch["choice_input_ids"],
            batch["choice_attention_mask"],
            batch["window_mask"].tolist(),
            strict=True,
        )
    }
    # A missing window has one padding token, because a softmax over no tokens is undefined.
    assert rows == {
        ("abcd", "defg"): [1, 1],
        ("p", ""): [1, 0],
        ("abcd", "de"): [1, 1],
        ("", ""): [1, 0],
    }
    assert batch["example_weights"].tolist() == [1, 1, 1, 0]
    resumed = FineTuningLoader(made, [6], batch_size=4, seed=0, pad_id=0, start=loader.position)
    second = next(loader)
    for name, values in next(resumed).items():
        np.testing.assert_array_equal(values, second[name])


def test_other_kinds_of_tasks_refuse_a_truncation(vocabulary):
    tagged = TaggedExample(id="1", words=("a", "b"), tags=("O", "O"))
    tagging = Task(
        name="t",
        kind="token_classification",
        labels=("O",),
        metrics=("f1",),
        splits={"train": (tagged,)},
    )
    with pytest.raises(ConfigError, match="truncation is 'tail', but the kind of task is token_cl"):
        make_features(tagging, "train", vocabulary, 6, 1, make_truncation("tail"))


def test_truncations_are_saved_and_old_configs_read_the_head():
    data = FineTuningData(task=Columns(train="t.csv", text="text", label="label"), tokenizer="v")
    saved = to_json(data)
    del saved["truncation"]
    assert from_json(FineTuningData, saved).truncation == HeadTruncation()
    for name in TRUNCATIONS:
        truncation = make_truncation(name)
        saved["truncation"] = to_json(truncation)
        assert from_json(FineTuningData, saved).truncation == truncation
        assert truncation_name(truncation) == name


@pytest.mark.parametrize(
    ("name", "pooling", "message"),
    [
        (
            "middle",
            None,
            "truncation is 'middle'; expected one of head, tail, head.tail, windows, hier",
        ),
        ("windows", "sum", "window_pooling is 'sum'; expected one of mean, max, first"),
        ("tail", "max", "window_pooling is 'max' and truncation 'tail'"),
        ("hierarchical", "max", "window_pooling is 'max' and truncation 'hierarchical'"),
    ],
)
def test_unknown_truncations_are_refused(name, pooling, message):
    with pytest.raises(ConfigError, match=message):
        make_truncation(name, pooling)
