"""Covers bert_jax/apps/serve/examples.py: the texts with which the page begins."""

from pathlib import Path

import pytest

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.examples import example_texts, main_script
from bert_jax.apps.serve.served_models import serve_model
from bert_jax.apps.testing.models import small_model
from bert_jax.models.heads.config import RankingHead, SequenceClassificationHead
from bert_jax.text.load_tokenizer import load_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("the ship ##s left harbor", "LATIN"),
        ("das Schiff ##e verließ порт", "LATIN"),
        ("корабль ##ов вышел из порта на рассвете a", "CYRILLIC"),
        ("غادرت السفينة الميناء عند الفجر a", "ARABIC"),
        ("船 在 黎 明 时 离 开 了 港 口 ##船 ##在 ##黎 ##明 ##时 ##离 ##开 ##了 a b", "CJK"),
        ("船 は 夜 明 け に 港 を 出 た カ 黎 时 离 开 国 語 a b", "HIRAGANA"),
        ("배는 새벽에 항구를 떠났다 a", "HANGUL"),
        ("जहाज़ भोर में बंदरगाह से निकला a", "DEVANAGARI"),
    ],
)
def test_script_is_that_of_most_letters_of_the_vocabulary(tmp_path: Path, words, script):
    # The letters of special tokens are few in a real vocabulary; here the words are repeated.
    tokens = [*SPECIAL, *words.split(), *(f"{word}{i}" for i in range(9) for word in words.split())]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    assert main_script(load_tokenizer(tmp_path)) == script


def test_examples_are_for_the_labels_and_the_mask_of_a_model(tmp_path):
    heads = {
        "encoder": None,
        "reviews": SequenceClassificationHead(labels=("bad", "good")),
        "nli": SequenceClassificationHead(labels=("ENTAILMENT", "neutral", "contradiction")),
        "reranker": RankingHead(),
    }
    found = {}
    for name, head in heads.items():
        model = small_model(tmp_path, head=head, num_hidden_layers=1)
        (served,) = serve_model(name, model, ServerConfig())
        found[name] = example_texts(served)
    assert found["encoder"] == {"fill": {"text": "The ship left the [MASK] at dawn."}}
    assert "classify" not in found["reviews"]
    assert found["nli"]["classify"]["pair"] == "The film is good."
    assert found["reranker"]["classify"]["text"] == "How do bees make honey?"
