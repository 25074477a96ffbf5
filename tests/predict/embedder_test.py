"""Covers bert_jax/predict/embedder.py.

Compares embeddings with NumPy over the hidden states of each text alone.
"""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.models.model import run_forward
from bert_jax.models.sentence_encoder.config import (
    Dense,
    Normalize,
    Prompt,
    SentenceEncoderConfig,
)
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.embedding_model import SentenceModel
from bert_jax.pretrained.load import LoadedModel

TEXTS = ["the old man mends a net by the sea", "a net"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return small_model(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> dict[str, list[np.ndarray]]:
    """Returns the hidden states of each text by itself, without padding."""
    return {text: states(model, text) for text in TEXTS}


def states(model: LoadedModel, text: str) -> list[np.ndarray]:
    """Returns the hidden states of one text without padding, N + 1 arrays [L, D]."""
    vocabulary = model.tokenizer
    assert vocabulary is not None
    ids = np.array([[vocabulary.cls_id, *vocabulary.encode(text), vocabulary.sep_id]], np.int32)
    batch = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": np.ones_like(ids),
    }
    return [s[0] for s in run_forward(model.params, model.config, batch)["hidden_states"]]


@pytest.mark.parametrize(
    "pooling, layers", [("cls", (-1,)), ("mean", (0, 2, -2)), ("max", (1, -1))]
)
def test_pooled_states_of_the_chosen_layers(model, alone, pooling, layers):
    pool = {"cls": lambda s: s[0], "mean": lambda s: s.mean(0), "max": lambda s: s.max(0)}[pooling]
    vectors = Embedder(model, pooling=pooling, layers=layers)(TEXTS)
    assert vectors.shape == (len(TEXTS), 16 * len(layers)) and vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        expected = np.concatenate([pool(alone[text][layer]) for layer in layers])
        np.testing.assert_allclose(vector, expected, atol=2e-6)


def test_dimensions_of_several_layers(model, alone):
    config = SentenceEncoderConfig(truncate_dim=5)
    sentence = SentenceModel(model=model, config=config, is_trained=True)
    expected = np.concatenate([alone[TEXTS[1]][layer].mean(0) for layer in (1, 2)])
    for dimensions, size in ((20, 20), (None, 32)):
        vector = Embedder(sentence, layers=(1, 2), dimensions=dimensions)(TEXTS[1])
        np.testing.assert_allclose(vector, expected[:size], atol=2e-6)


def test_long_text_is_truncated_and_reported(model):
    embed = Embedder(model)
    (long, cut), truncated = embed.embed(["the " * 40, "the " * 18])
    assert truncated == [True, False] and embed.num_truncated == 1
    np.testing.assert_allclose(long, cut, atol=1e-6)


def test_one_text_gives_one_embedding_and_empty_texts_keep_their_place(model):
    embed = Embedder(model)
    first, empty, second = embed([TEXTS[0], "", TEXTS[1]])
    single = embed(TEXTS[0])
    assert single.shape == (16,) and embed.num_truncated == 0
    np.testing.assert_allclose(single, first, atol=1e-6)
    np.testing.assert_allclose(second, embed(TEXTS[1]), atol=1e-6)
    np.testing.assert_allclose(empty, states(model, "")[-1].mean(axis=0), atol=1e-6)


def test_no_batch_composition_changes_a_vector(model):
    embed = Embedder(model, normalize=True)
    texts = [
        "the old man mends a net",
        "sea",
        "",
        "a net by the sea and " * 9,
        "the sea sings.",
    ] * 9
    together = embed(texts)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)
    for index in range(5):
        np.testing.assert_allclose(together[index], embed(texts[index]), atol=1e-6)
    assert embed([]).shape == (0, 16)


def test_prompts_are_put_before_texts_or_left_out_of_the_pooling(model, alone):
    prompt = "the old man"
    pooled = SentenceEncoderConfig(prompts=(Prompt(name="query", text=prompt + " "),))
    sentence = SentenceModel(model=model, config=pooled, is_trained=True)
    embed = Embedder(sentence)
    text = "mends a net by the sea"  # with the prompt: the first of TEXTS
    with_prompt = embed(text, prompt_name="query")
    np.testing.assert_allclose(with_prompt, alone[TEXTS[0]][-1].mean(0), atol=2e-6)
    np.testing.assert_array_equal(embed(text, prompt=prompt + " "), with_prompt)
    not_pooled = dataclasses.replace(
        pooled, include_prompt=False, default_prompt_name="query", truncate_dim=5
    )
    excluding = Embedder(dataclasses.replace(sentence, config=not_pooled))
    expected = alone[TEXTS[0]][-1][1 + len(prompt.split()) :].mean(0)
    np.testing.assert_allclose(excluding(text), expected[:5], atol=2e-6)
    assert excluding.embedding_size == 5
    with pytest.raises(
        UserError, match=r"did you mean 'query'\? the prompts of the model are: query"
    ):
        embed(text, prompt_name="qery")
    with pytest.raises(UserError, match="both the prompt 'a' and the name"):
        embed(text, prompt_name="query", prompt="a")
    with pytest.raises(UserError, match=r"has 21 tokens .* truncated to 20 tokens"):
        excluding(text, prompt="the " * 20)


def test_flags_choose_another_pooling_normalization_and_size(model):
    dense = Dense(in_features=16, out_features=6, activation=None)
    config = SentenceEncoderConfig(modules=(dense, Normalize()), max_seq_length=4)
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(16, 6)).astype(np.float32)
    head = {"dense": {"0": {"kernel": kernel, "bias": np.zeros(6, np.float32)}}}
    sentence = SentenceModel(model=model, config=config, head_params=head, is_trained=True)
    long, short = TEXTS[0], "the old"  # what 4 tokens with [CLS] and [SEP] leave of the long one
    raw, normalized = Embedder(sentence, normalize=False, pooling="cls"), Embedder(sentence)
    expected = states(model, short)[-1][0] @ kernel
    np.testing.assert_allclose(raw(long), expected, atol=1e-5)
    assert raw.num_truncated == 1 and normalized.max_length == 4
    vector = normalized(long)
    np.testing.assert_allclose(np.linalg.norm(vector), 1.0, atol=1e-6)
    np.testing.assert_allclose(Embedder(sentence, dimensions=3)(long), vector[:3], atol=1e-6)
    with pytest.raises(UserError, match="dimensions is 7, but its vectors have 6 components"):
        Embedder(sentence, dimensions=7)


def test_embedder_needs_no_heads(model):
    encoder = {"encoder": model.params["encoder"]}
    bare = dataclasses.replace(
        model, params=encoder, missing=("pooler", "masked_lm", "next_sentence")
    )
    np.testing.assert_array_equal(Embedder(bare)(TEXTS)[0], Embedder(model)(TEXTS)[0])


def test_unknown_layers_and_poolings_are_rejected(model):
    for layer in (3, -4):
        with pytest.raises(UserError, match=f"no layer {layer}: .* layers 1 to 2"):
            Embedder(model, layers=(layer,))
    with pytest.raises(UserError, match="no layer is chosen"):
        Embedder(model, layers=())
    with pytest.raises(UserError, match="pooling is 'sum'; expected one of cls, max, mean"):
        Embedder(model, pooling="sum")  # type: ignore[arg-type]


@pytest.mark.slow  # predictor_test.py has the same test of a model with a task head
def test_embedding_from_an_export_imports_no_tensorflow_torch_or_orbax(model, tmp_path):
    export(model, tmp_path / "exported")
    code = f"""
import sys
from bert_jax.__main__ import main
assert main(["fill-mask", {str(tmp_path / "exported")!r}, "a [MASK]"]) == 0
assert main(["embed", {str(tmp_path / "exported")!r}, "a net"]) == 0
print({{"tensorflow", "torch", "orbax", "seqio", "transformers"}} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "set()"
