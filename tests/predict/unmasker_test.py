"""Compares texts that an encoder writes with a slow reference, and draws with the model's odds.

Covers bert_jax/predict/unmasker.py, `UnmaskingConfig` and `bert-jax generate` with an encoder.
"""

import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.config.generation import Sampling, UnmaskingConfig
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.model import run_forward
from bert_jax.params import paths
from bert_jax.predict.unmasker import Unmasker
from bert_jax.pretrained.load import LoadedModel

TEXTS = ["the man mends a net by the sea", "a [MASK] by the [MASK]", ""]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> LoadedModel:
    """Returns a model whose tokens depend on the tokens around them, and not on biases."""
    made = small_model(tmp_path_factory.mktemp("model"), initializer_range=0.3)
    params = {
        path: np.zeros_like(leaf) if path.startswith("masked_lm") and "bias" in path else leaf
        for path, leaf in paths.flatten(made.params).items()
    }
    return dataclasses.replace(made, params=paths.unflatten(params))


def log_probabilities(model: LoadedModel, ids: list[int]) -> np.ndarray:
    """Returns those of all positions of one text without padding, without special tokens."""
    batch = {
        "input_ids": np.array([ids], np.int32),
        "token_type_ids": np.zeros((1, len(ids)), np.int32),
        "attention_mask": np.ones((1, len(ids)), np.int32),
    }
    tokenizer = model.tokenizer
    assert tokenizer is not None
    logits = run_forward(model.params, model.config, batch)["masked_lm"][0].astype(np.float64)
    logits = logits[:, : tokenizer.vocab_size]
    logits[:, list(tokenizer.special_ids)] = -np.inf
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def slow_unmasking(
    model: LoadedModel, text: str, num_tokens: int, num_steps: int | None, order: list[float] | None
) -> list[int]:
    """Replaces the masks of one text step by step; `order` has a number for each position."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    masks = [tokenizer.mask_id] * num_tokens
    ids = [tokenizer.cls_id, *tokenizer.encode(text), *masks, tokenizer.sep_id]
    total = ids.count(tokenizer.mask_id)
    steps = total if num_steps is None else min(num_steps, total)
    for step in range(steps):
        scores = log_probabilities(model, ids)
        open_positions = [i for i, token in enumerate(ids) if token == tokenizer.mask_id]
        rank = {i: scores[i].max() if order is None else order[i] for i in open_positions}
        best = sorted(open_positions, key=lambda i: -rank[i])
        for i in best[: total // steps + (step < total % steps)]:
            ids[i] = int(scores[i].argmax())
    assert tokenizer.mask_id not in ids
    return [i for i in ids if i not in tokenizer.special_ids]


@pytest.mark.parametrize("num_steps", [None, 3])
def test_most_likely_tokens_equal_the_slow_reference(model, num_steps):
    found = Unmasker(model, UnmaskingConfig(num_tokens=7, num_steps=num_steps))(TEXTS)
    for text, result in zip(TEXTS, found, strict=True):
        assert result.token_ids == slow_unmasking(model, text, 7, num_steps, None), text
        assert result.is_complete
        assert result.text == model.tokenizer.decode(result.token_ids)


def test_random_order_equals_the_slow_reference(model):
    settings = UnmaskingConfig(num_tokens=7, num_steps=4, order="random")
    found = Unmasker(model, settings)(TEXTS, first_index=5)
    for index, (text, result) in enumerate(zip(TEXTS, found, strict=True)):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1 << 20), 5 + index)
        order = [float(jax.random.uniform(jax.random.fold_in(key, i))) for i in range(20)]
        assert result.token_ids == slow_unmasking(model, text, 7, 4, order), text
    greedy = Unmasker(model, UnmaskingConfig(num_tokens=7, num_steps=4))(TEXTS)
    assert [r.token_ids for r in greedy] != [r.token_ids for r in found]


def test_samples_have_the_odds_of_the_model_whatever_the_batch(model):
    settings = UnmaskingConfig(num_tokens=0, decoding=Sampling(temperature=0.7, seed=3))
    write, text, count = Unmasker(model, settings), "the man [MASK] a net", 2000
    found = write([text] * count)
    tokenizer = model.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
    logits = log_probabilities(model, ids)[3] / 0.7
    expected = np.exp(logits) / np.exp(logits).sum()
    counts = np.bincount([result.token_ids[2] for result in found], minlength=len(expected))
    assert not counts[expected == 0].any()
    possible = expected > 0
    statistic = ((counts - count * expected)[possible] ** 2 / (count * expected[possible])).sum()
    freedom = possible.sum() - 1
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)
    assert write([text, text], first_index=17) == found[17:19]
    other = Sampling(temperature=0.7, seed=4)
    assert Unmasker(model, UnmaskingConfig(num_tokens=0, decoding=other))([text] * 9) != found[:9]


def test_impossible_texts_and_models_are_refused(model, tmp_path):
    write = Unmasker(model, UnmaskingConfig(num_tokens=16))
    assert len(write("the man").token_ids) == 18
    with pytest.raises(UserError, match=r"text 'the man a' has 21 tokens with the new ones, but"):
        write("the man a")
    with pytest.raises(
        UserError, match=r"no \[MASK\] in the text 'the man', and no new tokens are r"
    ):
        Unmasker(model, UnmaskingConfig(num_tokens=0))("the man")
    assert write([]) == []
    assert repr(write) == "<Unmasker small model: 16 new tokens, steps: one step for each token>"


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    exported = tmp_path_factory.mktemp("export") / "exported"
    export(model, exported)
    return exported


def test_generate_prints_texts_of_an_encoder(model, folder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS[:2], "", "a net"]) + "\n")
    flags = [
        "--max-new-tokens",
        "5",
        "--steps",
        "2",
        "--order",
        "random",
        "--sample",
        "--seed",
        "2",
    ]
    assert main(["generate", str(folder), *flags, "--file", str(tmp_path / "texts.txt")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    settings = UnmaskingConfig(num_tokens=5, num_steps=2, order="random", decoding=Sampling(seed=2))
    expected = Unmasker(model, settings)([*TEXTS, "a net"])
    assert [row["text"] for row in rows] == [*TEXTS, "a net"]
    assert [row["generated"] for row in rows] == [result.text for result in expected]
    assert all(row["complete"] for row in rows)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-beams", "2"], "--num-beams is for encoder-decoders, but .* is an encoder, which"),
        (["--min-new-tokens", "2"], "--min-new-tokens is for encoder-decoders"),
        (["--steps", "0"], "num_steps is 0, expected a number at least 1"),
        (["--top-k", "3"], "--top-k needs --sample"),
    ],
)
def test_flags_that_do_not_fit_are_refused(folder, flags, message, capsys):
    assert main(["generate", str(folder), *flags, "net"]) == ConfigError.exit_code
    err = capsys.readouterr().err
    assert re.search(message, err), err
