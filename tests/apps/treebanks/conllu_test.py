"""Covers the reader of treebanks: words of a sentence, trees, and errors of broken files."""

import re

import pytest

from bert_jax.apps.treebanks.conllu import read_treebank
from bert_jax.errors import UserError

TREEBANK = """\
# sent_id = 1
# text = I don't sleep.
1\tI\tI\tPRON\tPRP\tNumber=Sing|Person=1\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\tTense=Pres\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tsleep\tsleep\tVERB\tVB\t_\t0\troot\t_\t_
4.1\tsleep\tsleep\tVERB\tVB\t_\t_\t_\t4:conj\t_
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
"""


def write(tmp_path, text):
    path = tmp_path / "a.conllu"
    path.write_text(text, "utf-8")
    return str(path)


def test_words_without_multiword_tokens_and_empty_nodes(tmp_path):
    first, second = read_treebank(write(tmp_path, TREEBANK))
    assert first.words == ("I", "do", "n't", "sleep", ".")
    assert first.heads == (3, 3, 3, -1, 3) and first.root == 3 and first.first_line == 3
    assert first.upos[0] == "PRON" and first.xpos[1] == "VBP" and first.deprels[4] == "punct"
    assert first.feats[0] == {"Number": "Sing", "Person": "1"} and first.feats[2] == {}
    assert second.words == ("Go",) and second.depths() == [0]
    assert read_treebank(write(tmp_path, TREEBANK), limit=1) == [first]


def test_depths(tmp_path):
    rows = [f"{i}\tw\t_\tX\t_\t_\t{head}\tdep\t_\t_" for i, head in enumerate((2, 3, 5, 3, 0), 1)]
    (sentence,) = read_treebank(write(tmp_path, "\n".join(rows)))
    assert sentence.depths() == [3, 2, 1, 2, 0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\t4\tnsubj", "\t6\tnsubj", "line 3: the HEAD is '6'.*one of the 5 words"),
        ("\t4\tnsubj", "\t_\tnsubj", "line 3: the HEAD is '_'"),
        ("\t4\tnsubj", "\t1\tnsubj", "line 3: the heads of 'I' run in a cycle"),
        ("\t4\tnsubj", "\t0\tnsubj", "line 7: a second word with HEAD 0 .* in line 3"),
        ("\t0\troot\t_\t_\n4.1", "\t1\troot\t_\t_\n4.1", "line 3: no word .* has HEAD 0"),
        ("3\tn't", "4\tn't", "line 6: the id of the word is '4'; expected 3"),
        ("\tVBP", "", "line 5: 9 columns"),
        ("1\tGo", "1\t", "line 11: the FORM is empty"),
    ],
)
def test_broken_treebanks(tmp_path, old, new, message):
    path = write(tmp_path, TREEBANK.replace(old, new, 1))
    with pytest.raises(UserError, match=rf"{re.escape(path)}, {message}"):
        read_treebank(path)


def test_empty_treebank(tmp_path):
    with pytest.raises(UserError, match="no sentences"):
        read_treebank(write(tmp_path, "# only a comment\n\n"))
