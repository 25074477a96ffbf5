"""Tests predictions of each kind of model: batches, long texts, invalid inputs."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from bert_jax.apps.testing.models import small_model
from bert_jax.data.finetuning.example import QuestionExample, TaggedExample, TextExample
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import run_forward
from bert_jax.predict.checks import check_pairs
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import LoadedModel

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
HEADS = {
    "classification": SequenceClassificationHead(labels=("no", "perhaps", "yes")),
    "regression": RegressionHead(),
    "token_classification": TokenClassificationHead(labels=TAGS),
    "question_answering": QuestionAnsweringHead(),
    "multiple_choice": MultipleChoiceHead(),
}
LONG = "the old man mends a net by the sea " * 8
INPUTS: dict[str, list[Any]] = {
    "classification": ["a net", ("the old man", "by the sea"), LONG, "the sea", ("a", LONG)],
    "regression": ["a net", ("the old man", "by the sea"), LONG, "the sea", (LONG, LONG)],
    "token_classification": ["a net, the sea.", ("the", "U.S.", "man"), LONG, "old"],
    "question_answering": [("the net", "the old man mends a net"), ("a", LONG), ("man", "sea")],
    "multiple_choice": [("the old man", "a net", "sea"), ("a", LONG, "the"), ("sea", "net", "man")],
}
each_kind = pytest.mark.parametrize("kind", HEADS)
# Scores of regression are rows like those of classes.
each_kind_but_regression = pytest.mark.parametrize(
    "kind",
    [pytest.param(x, marks=[pytest.mark.slow] if x == "regression" else []) for x in HEADS],
)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, LoadedModel]:
    folder = tmp_path_factory.mktemp("vocabularies")
    fields: Any = {
        "positions": LearnedPositions(max_position_embeddings=48),
        "initializer_range": 0.3,
    }
    return {kind: small_model(folder / kind, head=head, **fields) for kind, head in HEADS.items()}


def assert_close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Asserts that JSON values are equal except for the last digits of numbers."""
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert_close(value, expected[key], tolerance)
    elif isinstance(found, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(found, float):
        assert found == pytest.approx(expected, abs=tolerance)
    else:
        assert found == expected


@each_kind_but_regression
def test_prediction_depends_on_its_own_input_only(models, kind):
    inputs, predict = INPUTS[kind], cached(models, kind)
    together = predict(inputs)
    assert_close(predict(inputs[::-1])[::-1], together)
    assert_close([row for given in inputs for row in predict([given])], together)
    few = cached(models, kind, batch_size=2)
    assert_close(few(inputs), together)
    assert predict([]) == []
    assert json.loads(json.dumps(together)) == together


@each_kind
def test_one_input_gives_one_prediction(models, kind):
    predict, one = cached(models, kind), INPUTS[kind][1]
    assert predict(one) == predict([one])[0]
    if kind != "multiple_choice":
        assert predict("the old man", "the sea") if predict.kind.reads_pairs else predict("a net")


@each_kind
def test_empty_texts_keep_their_place_without_a_prediction(models, kind):
    predict, one = cached(models, kind), INPUTS[kind][-1]
    counts: list[int] = []
    empty, found, blank = predict(["", one, " "], on_progress=counts.append)
    assert_close(found, predict(one))
    assert not any(empty.values()) and blank["text"] == " "
    outputs = set(predict.kind.empty_prediction)
    assert set(empty) == {"text"} | outputs and outputs - {"words"} <= set(found)
    assert sum(counts) == 3 and predict("") == empty


def test_pairs_are_two_texts_or_two_lists_of_the_same_length(models):
    predict = cached(models, "classification")
    expected = predict([("the old man", "by the sea"), ("a", "net")])
    assert predict("the old man", "by the sea") == predict(("the old man", "by the sea"))
    assert predict(["the old man", "a"], ["by the sea", "net"]) == expected
    with pytest.raises(UserError, match="found 2 first texts and 1 second texts"):
        predict(["the old man", "a"], ["by the sea"])
    with pytest.raises(TypeError, match="found one text and one list"):
        predict("the old man", ["by the sea"])  # type: ignore[call-overload]
    for kind in ("token_classification", "multiple_choice"):
        with pytest.raises(UserError, match=f"a model for {kind} reads"):
            cached(models, kind)("a", "net")


@each_kind_but_regression
def test_progress_counts_every_input_once(models, kind):
    counts: list[int] = []
    cached(models, kind, batch_size=2)(INPUTS[kind], on_progress=counts.append)
    assert sum(counts) == len(INPUTS[kind]) and len(counts) > 1


def alone(model: LoadedModel, first: list[int], second: list[int] | None = None) -> np.ndarray:
    """Returns the head's output for one sequence without padding."""
    vocabulary = model.tokenizer
    assert vocabulary is not None
    row, types = [vocabulary.cls_id, *first, vocabulary.sep_id], [0] * (len(first) + 2)
    if second is not None:
        row, types = [*row, *second, vocabulary.sep_id], [*types, *[1] * (len(second) + 1)]
    batch = {
        "input_ids": np.array([row], np.int32),
        "token_type_ids": np.array([types], np.int32),
        "attention_mask": np.ones((1, len(row)), np.int32),
    }
    return run_forward(model.params, model.config, batch, model.head)["task"][0].astype(np.float64)


def token_ids(model: LoadedModel, text: str) -> list[int]:
    assert model.tokenizer is not None
    return model.tokenizer.encode(text)


def slow_sequences(
    a: list[int], b: list[int] | None, max_tokens: int, long: str, stride: int
) -> list[tuple[list[int], list[int] | None]]:
    """Returns the sequences of a long text, token by token; for pairs `max_tokens` is for both."""
    short_a, short_b = list(a), list(b or [])
    while (
        len(short_a) + len(short_b) > max_tokens
    ):  # the longer first; of equals, what was shorter at first
        sizes = (len(short_a), len(short_b))
        first = sizes[0] > sizes[1] or (sizes[0] == sizes[1] and len(a) <= len(b or []))
        (short_a if first else short_b).pop()
    if len(short_a) == len(a) and len(short_b) == len(b or []):
        return [(a, b)]

    def pick(text: list[int], size: int) -> list[int]:
        from_head = {"head": size, "tail": 0, "head+tail": size * 128 // 510}[long]
        last = len(text) - (size - from_head)
        chosen = [i for i in range(len(text)) if i < from_head or i >= last]
        return [text[i] for i in chosen] if len(text) > size else text

    if long != "windows":
        return [(pick(a, len(short_a)), None if b is None else pick(b, len(short_b)))]
    slides_first = b is None or len(a) > len(b)
    text, size = (a, len(short_a)) if slides_first else (b or [], len(short_b))
    step, windows, start = size - min(stride, size // 2), [], 0
    while True:
        windows.append(text[start : start + size])
        if start + size >= len(text):
            break
        start += step
    if b is None:
        return [(window, None) for window in windows]
    return [(w, short_b) if slides_first else (short_a, w) for w in windows]


def slow_pool(shares: np.ndarray, pool: str) -> np.ndarray:
    return {"mean": shares.mean(axis=0), "max": shares.max(axis=0), "first": shares[0]}[pool]


LONG_INPUTS = [
    "a net",
    LONG,
    ("the sea", LONG),
    (LONG, "the old man"),
    (LONG, LONG[:90]),
    (LONG[:60], LONG),
    LONG[:118],
]


@pytest.mark.parametrize(
    ("truncation", "window_pooling"),
    [
        ("head", None),
        ("tail", None),
        ("head+tail", None),
        ("windows", "mean"),
        ("windows", "max"),
        ("windows", "first"),
    ],
)
def test_long_texts_are_truncated_like_a_slow_reference(models, truncation, window_pooling):
    options: Any = {
        "truncation": truncation,
        "window_pooling": window_pooling,
        "max_length": 20,
        "window_overlap": 5,
    }
    classify = Predictor(models["classification"], **options)
    regress = Predictor(models["regression"], **options)
    for given_, label_row, value_row in zip(
        LONG_INPUTS, classify(LONG_INPUTS), regress(LONG_INPUTS), strict=True
    ):
        for kind, row in (("classification", label_row), ("regression", value_row)):
            model = models[kind]
            a, b = (given_, None) if isinstance(given_, str) else given_
            second = None if b is None else token_ids(model, b)
            max_tokens = 18 if b is None else 17
            rows = slow_sequences(token_ids(model, a), second, max_tokens, truncation, 5)
            found = np.stack([alone(model, *texts) for texts in rows])
            if kind == "regression":
                expected = slow_pool(found[:, 0], window_pooling or "first")
                assert row["value"] == pytest.approx(expected, abs=2e-5)
                continue
            shares = slow_pool(softmax(found, axis=-1), window_pooling or "first")
            shares /= shares.sum()
            assert list(row["probabilities"].values()) == pytest.approx(list(shares), abs=2e-5)
            assert row["label"] == HEADS["classification"].labels[int(shares.argmax())]
    assert classify.num_truncated == {"windows": 2}.get(truncation, 6)


def test_words_are_tagged_by_the_window_with_most_context(models):
    model = models["token_classification"]
    predict = Predictor(model, max_length=12, window_overlap=4)
    words = LONG.split()[:24]
    (row,) = predict([tuple(words)])
    ids = [token_ids(model, word) for word in words]
    flat = [(number, id) for number, word in enumerate(ids) for id in word]
    best: dict[int, tuple[float, int]] = {}
    for start in range(0, len(flat), 6):
        window = flat[start : start + 10]
        logits = alone(model, [id for _, id in window])[1:-1]
        for place, (number, _) in enumerate(window):
            first = start + place == [n for n, _ in flat].index(number)
            context = min(place, len(window) - 1 - place) + 0.01 * len(window)
            if first and context > best.get(number, (-1.0, 0))[0]:
                best[number] = (context, int(logits[place].argmax()))
        if start + 10 >= len(flat):
            break
    bare = [TAGS[best[number][1]] for number in range(len(words))]
    assert [tag[2:] for tag in row["tags"]] == [tag[2:] for tag in bare]
    assert len(set(bare)) > 1


def test_probabilities_equal_softmax_of_the_logits(models):
    (row,) = Predictor(models["multiple_choice"])([("the old man", "a net", "the sea", "sea")])
    model = models["multiple_choice"]
    scores = np.concatenate(
        [
            alone(model, token_ids(model, "the old man"), token_ids(model, ending))
            for ending in ("a net", "the sea", "sea")
        ]
    )
    assert row["probabilities"] == pytest.approx(list(softmax(scores)), abs=1e-5)
    assert row["choice"] == int(scores.argmax())
    assert row["choices"] == ["a net", "the sea", "sea"] and row["context"] == "the old man"


CHARACTERS = st.sampled_from("manetsold .,-!\u00e9\u4e2d\u200b\u00a0\t")


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_entities_and_answers_are_slices_of_the_text(models, data):
    texts_with_letters = st.text(CHARACTERS, max_size=60).filter(
        lambda t: any(c.isalnum() for c in t)
    )
    texts = data.draw(st.lists(texts_with_letters, min_size=1, max_size=4))
    tag = cached(models, "token_classification")
    for text, row in zip(texts, tag(texts), strict=True):
        assert row["text"] == text and len(row["words"]) == len(row["tags"])
        ends = 0
        for entity in row["entities"]:
            assert ends <= entity["start"] < entity["end"] <= len(text)
            assert text[entity["start"] : entity["end"]] == entity["text"]
            assert not entity["text"][0].isspace() and not entity["text"][-1].isspace()
            ends = entity["end"]
        inside = sum(tag[0] == "B" for tag in row["tags"])
        assert inside == len(row["entities"])
    answer = cached(models, "question_answering")
    for text, row in zip(texts, answer([("the net", text) for text in texts]), strict=True):
        assert text[row["start"] : row["end"]] == row["answer"] != ""
        assert 0 < row["probability"] <= 1


PREDICTORS: dict[tuple[str, int], Predictor] = {}


def cached(models: dict[str, LoadedModel], kind: str, batch_size: int = 32) -> Predictor:
    """Returns a predictor whose programs are compiled once for all tests."""
    if (kind, batch_size) not in PREDICTORS:
        PREDICTORS[kind, batch_size] = Predictor(models[kind], batch_size=batch_size)
    return PREDICTORS[kind, batch_size]


def test_no_answer_is_predicted_only_if_allowed(models):
    model = models["question_answering"]
    pair = ("the net", "the old man mends a net by the sea")
    logits = alone(model, token_ids(model, pair[0]), token_ids(model, pair[1]))
    inside = range(4, len(logits) - 1)
    best = max(logits[i, 0] + logits[j, 1] for i in inside for j in inside if i <= j < i + 30)
    none = logits[0].sum()
    (row,), (or_none,) = Predictor(model)([pair]), Predictor(model, allow_no_answer=True)([pair])
    assert row["score"] == pytest.approx(best, abs=1e-4)
    assert row["no_answer_score"] == pytest.approx(none - best, abs=1e-4)
    assert or_none["score"] == pytest.approx(max(best, none), abs=1e-4)
    assert (or_none["answer"] == "") == (none > best) == (or_none["start"] == -1)


def test_labels_of_examples_are_not_used(models):
    labeled = TextExample(id="7", text="a net", label="none of the model's")
    (row,) = Predictor(models["classification"])([labeled])
    assert row["id"] == "7" and "text" not in row
    tagged = TaggedExample(id="8", words=("a", "net"), tags=("O", "B-BOAT"))
    (row,) = Predictor(models["token_classification"])([tagged])
    assert list(row) == ["id", "tags", "entities"]
    (row,) = Predictor(models["question_answering"])(
        [QuestionExample(id="9", question="a", context="the sea", is_impossible=True)]
    )
    assert row["id"] == "9" and row["answer"]


@pytest.mark.parametrize(
    ("kind", "given_", "message"),
    [
        ("classification", ("a", " "), "a text is empty"),
        ("classification", ("a", ""), "a text is empty"),
        (
            "classification",
            ("a", "b", "c"),
            r"\('a', 'b', 'c'\): .* reads a text or",
        ),
        ("token_classification", "\x01", "a text is empty"),
        ("token_classification", (), "a text is empty"),
        ("token_classification", ("a", ""), "a text is empty"),
        (
            "token_classification",
            TextExample(id="1", text="a", text_pair="b"),
            "reads one text, or its words",
        ),
        ("question_answering", "who?", "reads a question and a context"),
        ("question_answering", ("who?", "\n"), "a text is empty"),
        ("multiple_choice", ("the sea", "a"), "reads a context and two or more choices"),
        ("regression", TaggedExample(id="1", words=("a",)), "reads a text or a pair"),
    ],
)
def test_empty_and_wrong_inputs_are_rejected(models, kind, given_, message):
    with pytest.raises(UserError, match=message):
        cached(models, kind)(["a net", given_] if kind == "classification" else [given_])


def test_invalid_settings_are_rejected(models, tmp_path):
    with pytest.raises(UserError, match=r"no head for a task.*bert-jax finetune TASK"):
        Predictor(small_model(tmp_path))
    model = models["classification"]
    with pytest.raises(ConfigError, match="max_length is 49; expected 4 to 48"):
        Predictor(model, max_length=49)
    with pytest.raises(ConfigError, match="truncation is 'middle'"):
        Predictor(model, truncation="middle")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="window_pooling is 'max' and truncation 'head'"):
        Predictor(model, window_pooling="max")
    with pytest.raises(ConfigError, match="batch_size is 0"):
        Predictor(model, batch_size=0)
    with pytest.raises(
        ConfigError, match="truncation is 'tail', but the kind of task is token_classification"
    ):
        Predictor(models["token_classification"], truncation="tail")
    with pytest.raises(ConfigError, match="increase --max-length"):
        Predictor(models["question_answering"], max_length=12)([("the net", "a sea")])


@pytest.mark.slow  # architecture_test.py follows all imports, and lists who may import PyTorch
def test_predicting_from_an_export_imports_no_tensorflow_torch_or_orbax(models, tmp_path):
    export(models["token_classification"], tmp_path / "exported")
    code = f"""
import sys
from bert_jax.__main__ import main
assert main(["predict", {str(tmp_path / "exported")!r}, "a net"]) == 0
print({{"tensorflow", "torch", "orbax", "seqio", "transformers"}} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_pairs_are_required_if_the_model_was_trained_on_pairs():
    single, pair = TextExample(id="0", text="the sea"), TextExample(id="1", text="a", text_pair="b")
    for reads_pairs in (None, True):
        check_pairs([pair], reads_pairs, "runs/rte")
    with pytest.raises(
        UserError, match=r"trained on pairs of texts, .* 'the sea' .* \(with --pairs"
    ):
        check_pairs([pair, single], True, "runs/rte")
    with pytest.raises(UserError, match=r"on single texts, but the input 'a' .* \(without --pairs"):
        check_pairs([single, pair], False, "runs/reviews")
