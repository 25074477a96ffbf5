"""Compares the features of every dev example with Hugging Face's tokenizer and datasets.

Files are read independently with Python's csv and json, and labels have the numbers of Hugging
Face's datasets; the tokenizer truncates, makes windows and finds words by itself.
"""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.config.labeled_data import Conll, Glue, Snli, Squad, Swag, TaskConfig
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.tasks.features import make_features
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="parity needs transformers")

NLI = ["entailment", "neutral", "contradiction"]
TWO_WAY = ["entailment", "not_entailment"]
# Task -> file, columns of text, text pair and label, classes in the order of their ids.
GLUE: dict[str, tuple[str, str, str | None, str, list[str]]] = {
    "cola": ("CoLA/dev.tsv", "3", None, "1", ["0", "1"]),
    "sst2": ("SST-2/dev.tsv", "sentence", None, "label", ["0", "1"]),
    "mrpc": ("MRPC/dev.tsv", "#1 String", "#2 String", "Quality", ["0", "1"]),
    "stsb": ("STS-B/dev.tsv", "sentence1", "sentence2", "score", []),
    "qqp": ("QQP/dev_cs224n.rebuilt.tsv.gz", "question1", "question2", "is_duplicate", ["0", "1"]),
    "mnli": ("MNLI/dev_matched.rebuilt.tsv.gz", "sentence1", "sentence2", "gold_label", NLI),
    "qnli": ("QNLI/dev.tsv", "question", "sentence", "label", TWO_WAY),
    "rte": ("RTE/dev.tsv", "sentence1", "sentence2", "label", TWO_WAY),
    "wnli": ("WNLI/dev.tsv", "sentence1", "sentence2", "label", ["0", "1"]),
}
OFFICIAL = {"qqp": "dev.tsv.gz", "mnli": "dev_matched.tsv.gz"}


@pytest.fixture(scope="module")
def vocabulary(shared: Path) -> Tokenizer:
    return load_tokenizer(shared / "vocab" / "bert-base-uncased" / "vocab.txt")


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> Any:
    vocab = str(shared / "vocab" / "bert-base-uncased" / "vocab.txt")
    # transformers 5 needs a mapping where version 4 needed a file.
    with open(vocab, encoding="utf-8") as file:
        pieces = {line.rstrip("\n"): number for number, line in enumerate(file)}
    tokenizer = transformers.BertTokenizerFast(vocab=pieces, do_lower_case=True)
    assert tokenizer.vocab_size == 30522
    return tokenizer


def open_text(path: Path) -> Any:
    opener = gzip.open if path.suffix == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")


def tab_separated(path: Path, names: list[str] | None = None) -> list[dict[str, str]]:
    with open_text(path) as file:
        rows = csv.DictReader(file, names, delimiter="\t", quoting=csv.QUOTE_NONE)
        return list(rows)


def features_of(config: TaskConfig, vocabulary: Tokenizer, length: int, stride: int = 0):
    return make_features(load_task(config), "dev", vocabulary, length, stride)


def assert_texts(features: Features, reference: Any) -> None:
    assert len(features) == len(reference["input_ids"])
    for name, rows in (
        ("input_ids", features.input_ids),
        ("token_type_ids", features.token_type_ids),
    ):
        for row, expected in zip(rows, reference[name], strict=True):
            assert row.tolist() == expected


def encode_texts(tokenizer: Any, first: list[str], second: list[str] | None, length: int) -> Any:
    return tokenizer(first, second, truncation="longest_first", max_length=length)


# MNLI and QQP, the largest tasks, and QNLI twice are read only if slow tests run.
@pytest.mark.parametrize(
    ("name", "length"),
    [
        pytest.param(
            name,
            length,
            marks=[pytest.mark.slow] if name in ("qqp", "mnli", "qnli") else [],
        )
        for name in GLUE
        for length in (32, 128)
    ],
)
def test_glue_features(shared: Path, tmp_path: Path, vocabulary, tokenizer, name: Any, length: int):
    file, text, pair, label, classes = GLUE[name]
    source = shared / "glue" / file
    link = tmp_path / Path(file).parent / OFFICIAL.get(name, Path(file).name)
    link.parent.mkdir()
    link.symlink_to(source)
    features = features_of(Glue(task=name, folder=str(tmp_path)), vocabulary, length)

    rows = tab_separated(source, list("0123") if name == "cola" else None)
    second = None if pair is None else [row[pair] for row in rows]
    assert_texts(features, encode_texts(tokenizer, [row[text] for row in rows], second, length))
    if classes:
        assert features.targets["labels"] == [classes.index(row[label]) for row in rows]
    else:
        assert features.targets["label_values"] == [float(row[label]) for row in rows]


def test_snli_features(shared: Path, vocabulary, tokenizer):
    features = features_of(Snli(folder=str(shared / "nli")), vocabulary, 40)
    with open_text(shared / "nli" / "snli_validation.tsv") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    texts = [[row[column] for row in rows] for column in ("premise", "hypothesis")]
    assert_texts(features, encode_texts(tokenizer, *texts, length=40))
    assert features.targets["labels"] == [int(row["label"]) for row in rows]


def conll_sentences(path: Path) -> Iterator[list[list[str]]]:
    with open_text(path) as file:
        for block in file.read().split("\n\n"):
            lines = [line.split() for line in block.split("\n") if line]
            if lines and lines[0][0] != "-DOCSTART-":
                yield lines


def test_conll_features(shared: Path, vocabulary, tokenizer):
    """Compares the tags at the first token of each word; IOB1 is converted to IOB2."""
    path = shared / "ner" / "conll2003" / "eng.testa"
    train = shared / "ner" / "conll2003" / "eng.train.gz"
    task = load_task(Conll(train=str(train), dev=str(path)))
    features = make_features(task, "dev", vocabulary, 512, 0)
    sentences = list(conll_sentences(path))
    words = [[line[0] for line in lines] for lines in sentences]
    reference = tokenizer(words, is_split_into_words=True)
    assert_texts(features, reference)
    kinds = ["LOC", "MISC", "ORG", "PER"]
    names = ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI")]
    for row, lines in enumerate(sentences):
        expected, previous = [], "O"
        for tag in (line[-1] for line in lines):
            begins = tag[0] == "B" or tag[2:] != previous[2:]
            expected.append(tag if tag == "O" else f"{'B' if begins else 'I'}-{tag[2:]}")
            previous = tag
        owners: Any = reference.word_ids(row)
        seen: set[int] = set()
        targets: dict[str, Any] = features.targets
        for place, word in enumerate(owners):
            label = targets["token_labels"][row][place]
            weight = targets["token_label_weights"][row][place]
            if word is None or word in seen:
                assert weight == 0
            else:
                seen.add(word)
                assert weight == 1 and names[label] == expected[word]


@pytest.mark.parametrize(
    ("file", "version", "step"),
    [
        pytest.param("dev-v1.1.json.gz", "1.1", 1, marks=pytest.mark.slow),
        pytest.param("v2.0/cs224n-dev-v2.0.json.gz", "2.0", 1, marks=pytest.mark.slow),
        ("v2.0/cs224n-dev-v2.0.json.gz", "2.0", 5),
    ],
)
def test_squad_features(
    shared: Path, tmp_path: Path, vocabulary, tokenizer, file: str, version: Any, step: int
):
    """Compares windows of 384 tokens with an overlap of 128, and the answer's position in each.

    The fast test reads every fifth article.
    """
    path = tmp_path / "dev.json"
    with open_text(shared / "squad" / file) as stream:
        content = json.load(stream)
    path.write_text(json.dumps({**content, "data": content["data"][::step]}))
    features = features_of(Squad(dev=str(path), version=version), vocabulary, 384, 128)
    with open_text(path) as stream:
        paragraphs = [p for a in json.load(stream)["data"] for p in a["paragraphs"]]
    questions = [(q, p["context"]) for p in paragraphs for q in p["qas"]]
    reference = tokenizer(
        [q["question"] for q, _ in questions],
        [context for _, context in questions],
        truncation="only_second",
        max_length=384,
        stride=128,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert_texts(features, reference)
    assert features.example_index.tolist() == reference["overflow_to_sample_mapping"]
    wrong = []
    for row, number in enumerate(reference["overflow_to_sample_mapping"]):
        in_context = np.array([s == 1 for s in reference.sequence_ids(row)])
        offsets = np.where(in_context[:, None], reference["offset_mapping"][row], -1)
        np.testing.assert_array_equal(features.offsets[row], offsets)
        expected = span_of(questions[number][0], offsets)
        got = [features.targets[f"{end}_positions"][row] for end in ("start", "end")]
        wrong += [] if got == expected else [(row, got, expected)]
    assert not wrong


def test_multiple_choice_features(tmp_path: Path, vocabulary, tokenizer):
    """Compares pairs of context and ending, four per example, with the example of transformers."""
    rows = [
        {
            "sent1": f"A man, number {n}, sits " + "on a chair " * n,
            "sent2": "He",
            "label": str(n % 4),
        }
        | {f"ending{e}": f"sleeps {e} times, " + "unaffably " * (3 * e) for e in range(4)}
        for n in range(12)
    ]
    with open(tmp_path / "dev.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    features = make_features(load_task(Swag(dev=str(tmp_path / "dev.csv"))), "dev", vocabulary, 40)
    first = [row["sent1"] for row in rows for _ in range(4)]
    second = [f"{row['sent2']} {row[f'ending{e}']}" for row in rows for e in range(4)]
    reference = encode_texts(tokenizer, first, second, 40)
    assert features.num_choices == 4 and features.num_truncated > 0
    assert [row.tolist() for row in features.input_ids] == reference["input_ids"]
    assert [row.tolist() for row in features.token_type_ids] == reference["token_type_ids"]
    assert features.targets["labels"] == [int(row["label"]) for row in rows]


def span_of(question: dict[str, Any], offsets: np.ndarray) -> list[int]:
    """Returns the answer's tokens; (0, 0) unless the window contains all of them."""
    if question.get("is_impossible") or not question["answers"]:
        return [0, 0]
    answer = question["answers"][0]
    begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    inside = np.flatnonzero(offsets[:, 0] >= 0)
    if offsets[inside[0], 0] > begin or offsets[inside[-1], 1] < end:
        return [0, 0]
    first = inside[offsets[inside, 0] <= begin][-1]
    last = inside[offsets[inside, 1] >= end][0]
    return [int(first), int(last)]
