"""Injects real evaluation items into documents in many forms, and looks for planted phrases.

Covers bert_jax/data/corpus/contamination/{words,items,index,matching,config}.py.
"""

import json
import random
import re
import unicodedata
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax.apps.curate.item_matching import (
    ContaminationIndex,
    common_ngrams,
    count_documents,
    find_items,
    is_matchable,
)
from bert_jax.config.labeled_data import Columns, Glue, Squad
from bert_jax.data.corpus.contamination.items import (
    FileItems,
    Item,
    ItemText,
    Role,
    TaskItems,
    Words,
    read_items,
    word_keys,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.files import read_text

ITEMS_PER_LENGTH = 300


def item(item_id: str, *texts: str, answer: str | None = None) -> Item:
    fields = [ItemText(field=f"text{i}", role="input", text=text) for i, text in enumerate(texts)]
    if answer is not None:
        fields.append(ItemText(field="label", role="answer", text=answer))
    return Item(set_name="set", split="test", id=item_id, texts=tuple(fields))


def found_ids(index: ContaminationIndex, text: str, common: np.ndarray | None = None) -> set[str]:
    common = np.zeros(index.num_ngrams, np.bool_) if common is None else common
    return {index.items[each.item].id for each in find_items(index, Words.of(text), common)}


@pytest.fixture(scope="module")
def filler(shared) -> list[str]:
    text = read_text(shared / "text" / "novels" / "Burnett_Garden_1911.txt.gz")
    return text.split()[2000:60_000]


@pytest.fixture(scope="module")
def real_items(shared) -> dict[str, list[Item]]:
    """Returns real sentences of four sets by their length in words."""
    tasks = ("mrpc", "stsb", "cola", "sst2")
    folder = str(shared / "glue")
    items = read_items([TaskItems(task=Glue(task=n, folder=folder)) for n in tasks])
    texts = list(dict.fromkeys(each.texts[0].text for each in items))
    random.Random(0).shuffle(texts)
    lengths = {text: len(word_keys(text)) for text in texts}
    long = [text for text in texts if lengths[text] >= 13][:ITEMS_PER_LENGTH]
    medium = [text for text in texts if 8 <= lengths[text] < 13][:ITEMS_PER_LENGTH]
    return {
        name: [item(f"{name}{i}", text) for i, text in enumerate(texts_of_length)]
        for name, texts_of_length in (("long", long), ("medium", medium))
    }


def in_lines(text: str) -> str:
    words = text.split()
    return "\n".join(" ".join(words[i : i + 8]) for i in range(0, len(words), 8))


def hyphenated(text: str) -> str:
    """Breaks every fourth long word at the end of a line."""
    words = text.split()
    return " ".join(
        f"{word[:3]}-\n{word[3:]}" if i % 4 == 0 and re.fullmatch("[a-z]{6,}", word) else word
        for i, word in enumerate(words)
    )


def curly(text: str) -> str:
    return text.replace("'", "\u2019").replace('"', "\u201c").replace(" - ", " \u2014 ")


DISGUISES: dict[str, Callable[[str], str]] = {
    "verbatim": str,
    "lines of 8 words": in_lines,
    "hyphenated": hyphenated,
    "upper case": str.upper,
    "curly quotes": curly,
    "NFD": lambda text: unicodedata.normalize("NFD", text),
}


def test_injected_items_are_found_in_every_form(real_items, filler):
    index = ContaminationIndex([*real_items["long"], *real_items["medium"]])
    rng = random.Random(1)

    def words(count: int) -> str:
        start = rng.randrange(len(filler) - count)
        return " ".join(filler[start : start + count])

    embeddings: dict[str, Callable[[str, int], str]] = {
        name: lambda text, n, disguise=disguise: f"{words(40)}. {disguise(text)} {words(40)}"
        for name, disguise in DISGUISES.items()
    }
    embeddings["own paragraph"] = lambda text, n: f"{words(40)}.\n\n{text}\n\n{words(40)}"
    embeddings["equal filler"] = lambda text, n: f"{words(n // 2 + 1)} {text} {words(n // 2 + 1)}"
    embeddings["5 times filler"] = lambda text, n: f"{words(3 * n)} {text} {words(2 * n)}"
    for length, at_least in (("long", 0.99), ("medium", 0.95)):
        for name, embed in embeddings.items():
            found = sum(
                each.id in found_ids(index, embed(each.texts[0].text, len(text_words)))
                for each in real_items[length]
                for text_words in [each.texts[0].text.split()]
            )
            assert found / ITEMS_PER_LENGTH >= at_least, (length, name, found)
    assert not found_ids(index, " ".join(filler))


def test_planted_phrases_of_many_documents_are_not_found(real_items, filler):
    phrase = (
        "there were no people living there at the time of the census and the population density "
        "was listed as zero inhabitants per square mile for the whole of that year"
    )
    items = real_items["long"]
    with_phrase = [item(f"p{i}", f"{each.texts[0].text} {phrase}") for i, each in enumerate(items)]
    index = ContaminationIndex([*with_phrase, item("phrase", phrase)])
    documents = [f"{' '.join(filler[i * 50 : i * 50 + 60])}. {phrase}." for i in range(200)]
    # One document has a real item, with the phrase that it shares with others.
    documents.append(with_phrase[0].texts[0].text)
    words = [Words.of(text) for text in documents]
    by_source = np.stack([count_documents(index, words[k::3]) for k in range(3)])
    sums = by_source.sum(axis=0), (by_source > 0).sum(axis=0)
    common = common_ngrams(*sums, len(words), 3, limit=10)
    found = [found_ids(index, text, common) for text in documents]
    assert found[-1] == {"p0"}
    assert not any(found[:-1])
    without_filter = [found_ids(index, text) for text in documents]
    assert all("phrase" in each for each in without_filter)
    number = index.text_of_field(len(items), 0)
    assert number is not None
    assert not is_matchable(index, number, common)


def test_limit_of_common_phrases_depends_on_documents_and_sources():
    documents, sources = np.array([9, 10, 10, 500]), np.array([3, 2, 3, 1])
    assert common_ngrams(documents, sources, 1000, 4, 10).tolist() == [False, False, True, False]
    assert common_ngrams(documents, sources, 1000, 1, 10).tolist() == [False, True, True, True]
    assert common_ngrams(np.array([2, 3]), np.array([1, 1]), 59, 1, 10).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So. The book sank. It was a stone that swam.", set()),
        ("The book sank.\nThere were many others there. The stone swam.", {"pair"}),
        ("The book sank" + " word" * 60 + ". The stone swam.", set()),
        ("He said the book sank. The stone swam.", set()),
        ("gj04\tacceptable\tThe sailors left.", {"labeled"}),
        ("The sailors left. It was not acceptable.", {"labeled"}),
        ("It was not acceptable.\nThe sailors left.", set()),
    ],
)
def test_short_texts_are_found_with_another_text_of_their_item(text, expected):
    short = item("pair", "The book sank.", "The stone swam.")
    labeled = item("labeled", "The sailors left.", answer="acceptable")
    index = ContaminationIndex([short, labeled, item("alone", "It was a stone that swam.")])
    assert found_ids(index, text) == expected


def test_half_of_the_ngrams_within_twice_the_length_are_needed():
    words = [f"word{i}" for i in range(52)]
    index = ContaminationIndex([item("a", " ".join(words))])

    def fraction(text: str) -> list[float]:
        no_common = np.zeros(index.num_ngrams, np.bool_)
        return [each.fraction for each in find_items(index, Words.of(text), no_common)]

    assert fraction(" ".join(words)) == [1.0]
    assert fraction(" ".join(words[:32])) == [0.5]  # 20 of 40 13-grams
    assert fraction(" ".join(words[:31])) == []
    halves = words[:26] + ["x"] * 40 + words[26:]
    assert fraction(" ".join(halves)) == [28 / 40]
    assert fraction(" ".join(words[:26] + ["x"] * 90 + words[26:])) == []
    twice = words + ["x"] * 200 + words
    assert fraction(" ".join(twice)) == [1.0, 1.0]


def test_keys_ignore_case_marks_and_line_breaks():
    assert Words.of("“Don’t RE-\nwrap”, he said…").keys.tolist() == (
        word_keys("don't rewrap he said").tolist()
    )
    assert word_keys("Straße ﬁrst Cafe\u0301").tolist() == (
        word_keys("STRASSE first caf\u00e9").tolist()
    )
    assert len(word_keys("東京は日本の首都")) == 8
    assert len(word_keys("हिन्दी दुनिया")) == 2  # vowel signs and joiners belong to their word
    assert word_keys("مي\u200cخواهم").tolist() == word_keys("ميخواهم").tolist()
    hidden = "soft\u00adhyphen zero\u200bwidth direc\u200etion\u00a0mark bro\u00ad\nken"
    assert word_keys(hidden).tolist() == Words.of(hidden).keys.tolist()
    assert (
        word_keys(hidden).tolist()
        == word_keys("softhyphen zerowidth direction mark broken").tolist()
    )
    words = Words.of("One two. Three\nfour")
    assert words.boundaries.tolist() == [True, False, True, True, True]
    assert words.lines.tolist() == [0, 0, 0, 1]
    assert [words.text[slice(*words.span(i, i + 2))] for i in range(3)] == [
        "One two",
        "two. Three",
        "Three\nfour",
    ]
    assert len(Words.of(" \n.").keys) == 0


def test_contexts_of_qnli_in_squad_are_found(shared):
    """QNLI was made from SQuAD, so that its passages are a natural contamination."""
    qnli = read_items([TaskItems(task=Glue(task="qnli", folder=str(shared / "glue")))])
    dev = [each for each in qnli if each.split == "dev"][:400]
    squad = read_items([TaskItems(task=Squad(dev=str(shared / "squad" / "dev-v1.1.json.gz")))])
    contexts = dict.fromkeys(each.texts[1].text for each in squad)
    index = ContaminationIndex(dev)
    no_common = np.zeros(index.num_ngrams, np.bool_)
    found = {
        index.items[match.item].id
        for context in contexts
        for match in find_items(index, Words.of(context), no_common)
        if index.items[match.item].texts[match.field].role == "context"
    }
    assert len(found) / len(dev) > 0.95


def test_sentences_of_stsb_in_mrpc_are_found(shared):
    """STS-B was made from MRPC, among others."""
    folder = str(shared / "glue")
    dev = TaskItems(task=Glue(task="stsb", folder=folder), splits=("dev",))
    mrpc = TaskItems(task=Glue(task="mrpc", folder=folder), splits=("train", "dev"))
    index = ContaminationIndex(read_items([dev]))
    lines = {text.text for each in read_items([mrpc]) for text in each.texts[:2]}
    corpus = {word_keys(text).tobytes() for text in lines}
    expected = {
        each.id
        for each in index.items
        for text in each.texts
        if len(keys := word_keys(text.text)) >= 8 and keys.tobytes() in corpus
    }
    found = {each for line in sorted(lines) for each in found_ids(index, line)}
    assert len(expected) == 143
    assert expected <= found
    assert len(found - expected) <= 5  # sentences of which half the 13-grams are in MRPC


def test_fields_of_files_have_roles_and_missing_ones_are_an_error(tmp_path):
    path = tmp_path / "quiz.jsonl"
    rows = [
        {"question": "Who wrote it?", "passage": "A long text", "answers": ["Ann", "Ann Lee"]},
        {"question": "When?", "passage": None, "answers": 1911},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields: dict[str, Role] = {"question": "input", "passage": "context", "answers": "answer"}
    first, second = read_items([FileItems(name="quiz", file=str(path), fields=fields)])
    assert [(each.role, each.text) for each in first.texts] == [
        ("input", "Who wrote it?"),
        ("context", "A long text"),
        ("answer", "Ann"),
        ("answer", "Ann Lee"),
    ]
    assert [each.text for each in second.texts] == ["When?", "1911"]
    wrong = FileItems(name="quiz", file=str(path), fields={"qestion": "input"})
    with pytest.raises(UserError, match=r"no column 'qestion'; did you mean 'question'\?"):
        read_items([wrong])
    with pytest.raises(ConfigError, match=r"role of the field 'x' is 'inputs'; did you mean 'inp"):
        FileItems(name="quiz", file=str(path), fields={"x": "inputs"})  # pyright: ignore
    with pytest.raises(ConfigError, match="no field is an input or a context"):
        FileItems(name="quiz", file=str(path), fields={"answers": "answer"})
    with pytest.raises(ConfigError, match="two evaluation sets have the name 'quiz'"):
        read_items([FileItems(name="quiz", file=str(path), fields=fields)] * 2)
    table = tmp_path / "train.csv"
    table.write_text("text,label\ngood,a\nbad,b\n")
    task = Columns(train=str(table), text="text", label="label")
    with pytest.raises(ConfigError, match="it has the split train only, which is no test"):
        read_items([TaskItems(task=task)])
    with pytest.raises(ConfigError, match="no split 'dev'; columns has train"):
        read_items([TaskItems(task=task, splits=("dev",))])
