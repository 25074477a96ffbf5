"""Tests sentence splitting: difficult cases checked by hand, real books, other splitters."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.text.cleaning import clean_text
from bert_jax.text.files import read_text
from bert_jax.text.sentences import RuleSplitter, get_sentence_splitter, split_sentences

# One text per line; "|" marks the sentence boundaries.
CASES = """
Mr. Smith met Mrs. Ramsay and Dr. J. R. Watson at St. Paul's.|They left.
The rain fell.|It stopped!|Did it?|Yes.
I know, e.g. Tom and Ann, i.e. Both of them.|They know me.
The U.S. Army came to Washington, D.C. in May.|He left the U.S.|It was late.
He has a Ph.D. in Law.|She has none.
Capt. Brown (Ret.) and Gen. Lee vs. Col. Grant.|Who won?
We met on Jan. 5 at 3 p.m. sharp.|See Fig. 2 and No. 7, Vol. 3, pp. 4-5.|No.|I will not.
It cost $3.50.|She paid 7.|Then 8 more came.
"Why?" he asked.|"Stop!" cried the man.|"Go away."|She went.
"Why?" Mrs. Ramsay asked.|"I never!" Mary said.|"Who is it?"|Mary rose.
He said, "I am here."|"So am I."|(He laughed.)|Then [sic] all was well.
'Why not?' said he.|'Tis so.
“Curly?”|“Yes,” he said.|‘Single.’|Done.
"Yes!" - he cried.|"No?" - and she left.
"Well... I don't know," she said...|Then she left.|And so … he waited.
Wait . . . then what?|Nothing . . .|He went on.
What?!|No!!!|Yes.
1. The first thing.|2. The second thing.|IV. The fourth.
It was I.|He knew it was I.|You did not.
Acme Inc. was sold.|So was Jones Ltd. in June.
He read http://example.com/a.b and v1.2.3 of it.|Then he slept.
He was born in 1990 .|He left .|" Why ? " he asked .
他来了。|我走了！|好吗？
"Éa!" she cried.|Élan is a word.|Ñandú too.
No full stop at the end
""".strip().splitlines()


@pytest.mark.parametrize("case", CASES)
def test_difficult_sentence_boundaries(case):
    expected = case.split("|")
    # Chinese, Japanese and Korean have no spaces; all other sentences are separated by one.
    text = "".join(expected) if "。" in case else " ".join(expected)
    assert split_sentences(text) == expected


def test_wrapped_lines_and_headings():
    text = (
        "CHAPTER I. THE END\n\n"
        "At nine o'clock in the evening Mr.\nSmith went home. He was a man who\n"
        'did not like to be late. "Why?"\nasked I.\n\nTHE NEXT PART\n\nIt rained.\n'
    )
    assert split_sentences(text) == [
        "CHAPTER I.",
        "THE END",
        "At nine o'clock in the evening Mr. Smith went home.",
        "He was a man who did not like to be late.",
        '"Why?" asked I.',
        "THE NEXT PART",
        "It rained.",
    ]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abIU. !?…。\"'()\n\t-1éM", max_size=60))
def test_sentences_contain_everything_but_white_space(text):
    for splitter in (RuleSplitter(), get_sentence_splitter("lines")):
        sentences = splitter.split(text)
        assert "".join("".join(sentences).split()) == "".join(text.split())
        assert all(sentence == sentence.strip() != "" for sentence in sentences)


def test_real_novels(shared):
    for name in ("Dickens_Oliver_1839", "Burnett_Garden_1911", "Woolf_Lighthouse_1927"):
        text = clean_text(read_text(shared / f"text/novels/{name}.txt.gz"))
        sentences = split_sentences(text)
        assert "".join("".join(sentences).split()) == "".join(text.split())
        # A false boundary is often followed by a lower-case letter; a missed one leaves a capital.
        small = sum(sentence[0].islower() for sentence in sentences)
        assert small / len(sentences) < 0.005
        lengths = sorted(len(sentence.split()) for sentence in sentences)
        assert 8 <= lengths[len(lengths) // 2] <= 25
        assert lengths[-1] < 500


def test_sentences_of_the_bert_release(shared):
    """Compares with the sample text of BERT's release, which has one sentence per line."""
    lines = get_sentence_splitter("lines").split(read_text(shared / "text/sample_text.txt"))
    joined = " ".join(lines[3:])
    found = set(split_sentences(joined))
    agreed = sum(line in found for line in lines[3:])
    assert agreed / len(lines[3:]) > 0.7


def test_line_splitter():
    splitter = get_sentence_splitter("lines")
    assert splitter.name == "lines"
    assert splitter.split("one. still one\n\n two \r\n") == ["one. still one", "two"]


def test_sentencex_splitter():
    pytest.importorskip("sentencex", reason="optional library of the splitter 'sentencex'")
    splitter = get_sentence_splitter("sentencex:de")
    assert splitter.name == "sentencex:de"
    text = "Das ist z. B. Herr Dr. Müller. Er kam.\n\nEin neuer Absatz."
    assert splitter.split(text)[-2:] == ["Er kam.", "Ein neuer Absatz."]
    assert pickle.loads(pickle.dumps(splitter)).split(text) == splitter.split(text)
    assert get_sentence_splitter("sentencex").name == "sentencex:en"


def test_unknown_splitter():
    with pytest.raises(
        UserError, match=r"unknown sentence splitter 'punkt'; expected rules, lines"
    ):
        get_sentence_splitter("punkt")


def test_splitter_names_return_the_same_splitter():
    for name in ("rules", "lines"):
        splitter = get_sentence_splitter(name)
        assert splitter.name == name
        assert type(pickle.loads(pickle.dumps(splitter))) is type(splitter)
