"""Covers bert_jax/apps/attributions/: the verb, its page, and inputs that are refused."""

import json

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.attributions.attributor import Attributor
from bert_jax.apps.attributions.page import prediction_text
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead, TokenClassificationHead
from tests.helpers.report_markup import Report

HEAD = SequenceClassificationHead(labels=("no", "yes"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    export(small_model(folder / "v", head=HEAD, initializer_range=0.2), folder / "exported")
    return str(folder / "exported")


def test_verb_prints_tokens_and_writes_a_page(exported, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("The old <b>man\n\na net\n")
    command = ["attribute", exported, "--file", str(tmp_path / "texts.txt"), "--target", "yes"]
    assert main([*command, "--steps", "8", "--output", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["[CLS]", "+0.0000"]
    found = json.loads((tmp_path / "out" / "attributions.json").read_text())
    first, second = found["results"]
    assert [token["token"] for token in second["tokens"]] == ["[CLS]", "a", "net", "[SEP]"]
    total = sum(token["attribution"] for token in first["tokens"])
    difference = first["output"] - first["baseline_output"]
    assert total - difference == pytest.approx(first["completeness_error"], abs=1e-6)
    page = (tmp_path / "out" / "attributions.html").read_text()
    assert "span" in Report(page).tags  # well-formed, nothing is loaded
    assert page.count("<h3>") == 2 and "<b>" not in page and "text-decoration:underline" in page


def test_occlusion_of_pairs_leaves_out_special_tokens(exported, capsys):
    command = ["attribute", exported, "--pairs", "the man", "the sea", "--method", "occlusion"]
    assert main(command) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[:7]] == [
        "[CLS]",
        "the",
        "man",
        "[SEP]",
        "the",
        "sea",
        "[SEP]",
    ]
    assert [line[1] == "+0.0000" for line in lines[:7]] == [True, *[False] * 2] * 2 + [True]


def test_bad_inputs_are_explained(exported, tmp_path, capsys):
    model = small_model(tmp_path / "v", head=HEAD)
    attribute = Attributor(model, steps=2)
    with pytest.raises(UserError, match=r"no label 'yess'; did you mean 'yes'.* are: no, yes"):
        attribute("a net", "yess")
    with pytest.raises(UserError, match="the text is empty; expected"):
        attribute(" ")
    with pytest.raises(ConfigError, match="baseline is 'unk'; expected one of pad, mask, zero"):
        Attributor(model, baseline="unk")  # type: ignore[arg-type]
    tagger = small_model(tmp_path / "v", head=TokenClassificationHead(labels=("O", "B-X")))
    with pytest.raises(UserError, match="expected one that reads a text or a pair"):
        Attributor(tagger)
    assert main(["attribute", exported, "--pairs", "one"]) == 2
    assert "number of texts is 1; expected pairs" in capsys.readouterr().err
    assert prediction_text({"labels": []}) == "labels none"
