"""Tests zero-shot classification with prompts: parity with Hugging Face, and calibration."""

import dataclasses
import json

import numpy as np
import pytest

from bert_jax.apps.testing.models import random_parameters, small_config, small_model
from bert_jax.config.prompts import Demonstrations, LabelWords, Prompt
from bert_jax.data.finetuning.example import TextExample
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.layers.config import PaddingOffsetPositions
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.predict import prompt_classifier
from bert_jax.predict.prompt_classifier import PromptClassifier
from bert_jax.pretrained.load import build_model
from bert_jax.text.load_tokenizer import load_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LABELS = ("no", "yes", "maybe")
PAIRS = [("the old man", "a net"), ("the sea", "a man sings by the sea .")]
EXAMPLES = [TextExample(id=str(i), text=a, text_pair=b) for i, (a, b) in enumerate(PAIRS)]


def make_prompt(template, *words):
    return Prompt(
        template=template,
        label_words=tuple(
            LabelWords(label=label, words=each) for label, each in zip(LABELS, words, strict=True)
        ),
        tokens_of_words="averaged_tokens",
    )


PROMPT = make_prompt("{text} by {mask}.{sep}and {text_pair}", ("sea",), ("net", "man"), ("mended",))


def torch_mask_logits(folder, *texts):
    """Returns the masked-LM logits of PyTorch's model at the mask, and its tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager")
    inputs = tokenizer(*texts, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
    assert len(logits) == 1
    return logits[0].numpy(), tokenizer


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("bert"))


def test_bert_scores_equal_those_of_hugging_face(bert, tmp_path):
    export(bert, tmp_path / "exported")
    found = PromptClassifier(bert, PROMPT, LABELS, max_length=20).logits(EXAMPLES)
    for row, (text, text_pair) in zip(found, PAIRS, strict=True):
        logits, tokenizer = torch_mask_logits(
            tmp_path / "exported", f"{text} by [MASK].", f"and {text_pair}"
        )
        sea, net, man, *mended = (
            logits[i] for i in tokenizer("sea net man mended", add_special_tokens=False).input_ids
        )
        expected = [sea, (net + man) / 2, sum(mended) / 2]
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-5)


def test_roberta_scores_equal_those_of_hugging_face(tmp_path):
    words = ["Ġok", "Ġno", "Ġto"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *"oknt.,Ġ", "Ġo", "Ġn", "Ġt", *words, "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ o\nĠ n\nĠ t\nĠo k\nĠn o\nĠt o\n")
    shape = small_config()
    config = RobertaConfig(
        vocab_size=len(tokens),
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        intermediate_size=shape.intermediate_size,
        positions=PaddingOffsetPositions(max_position_embeddings=22),
    )
    imported = ImportedModel(random_parameters(config), config, load_tokenizer(tmp_path), None)
    model = build_model(imported, "small RoBERTa")
    export(model, tmp_path / "exported")
    prompt = make_prompt("{text} to{mask}, {text_pair}", ("ok",), ("no",), ("to",))
    example = TextExample(id="0", text="ok no", text_pair="no.")
    found = PromptClassifier(model, prompt, LABELS, max_length=20).logits([example])
    logits, tokenizer = torch_mask_logits(tmp_path / "exported", "ok no to<mask>, no.")
    expected = logits[tokenizer.convert_tokens_to_ids(words)]
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-5)


def test_calibration_gives_inputs_without_content_equal_scores(bert, monkeypatch):
    classifier = PromptClassifier(bert, PROMPT, LABELS, max_length=20)
    empty = TextExample(id="0", text="", text_pair="")
    assert np.ptp(classifier.logits([empty])) > 1e-3
    monkeypatch.setattr(prompt_classifier, "CONTENT_FREE_TEXTS", ("",))
    np.testing.assert_allclose(classifier.calibrated_logits([empty]), 0, atol=1e-9)


def test_calibration_divides_by_the_mean_over_inputs_without_content(bert):
    classifier = PromptClassifier(bert, PROMPT, LABELS, max_length=20)
    texts = [
        TextExample(id=text, text=text, text_pair=text)
        for text in prompt_classifier.CONTENT_FREE_TEXTS
    ]
    assert len(texts) == 3

    def probabilities(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    prior = np.mean([probabilities(classifier.logits([text]))[0] for text in texts], axis=0)
    expected = probabilities(classifier.logits(EXAMPLES)) / prior
    found = np.exp(classifier.calibrated_logits(EXAMPLES))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_in_context_learning_averages_the_logits_of_draws(bert):
    demonstrations = [
        TextExample(id="0", text="the sea", text_pair="a net", label="no"),
        TextExample(id="1", text="the old man", text_pair="a man", label="yes"),
        TextExample(id="2", text="a net", text_pair="the sea", label="maybe"),
        TextExample(id="3", text="a man", text_pair="the sea", label="maybe"),
    ]
    limited = Demonstrations(num_samples=8, max_text_tokens=1)

    def logits(chosen, text_examples=EXAMPLES):
        prompt = dataclasses.replace(PROMPT, demonstrations=limited)
        classifier = PromptClassifier(bert, prompt, LABELS, demonstrations=chosen, max_length=20)
        return classifier.logits(text_examples)

    sampled = logits(demonstrations)
    assert sampled.shape == (2, 3)
    np.testing.assert_allclose(logits(demonstrations, EXAMPLES[1:]), sampled[1:], rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="no example with the label 'no' for the demonstrations"):
        logits(demonstrations[1:])


def test_models_without_masked_lm_head_are_refused(bert, tmp_path):
    params = {name: tree for name, tree in bert.params.items() if name != "masked_lm"}
    without = dataclasses.replace(bert, params=params, missing=("masked_lm",))
    with pytest.raises(UserError, match="no masked-LM head, so it cannot score label words"):
        PromptClassifier(without, PROMPT, LABELS, max_length=20)
