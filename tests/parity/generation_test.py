"""Compares generated token ids with `generate` of Hugging Face's PyTorch models.

Covers bert_jax/predict/generator.py and token_scores.py. The vocabularies are small, so
that random models generate the end token in some texts and not in others.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.config.generation import (
    BeamSearch,
    GenerationConfig,
    Greedy,
)
from bert_jax.interop.seq2seq import read_seq2seq_folder
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.led.config import LedConfig
from bert_jax.params import paths
from bert_jax.predict.generator import generate_ids, token_rules
from tests.helpers.seq2seq_parity import (
    BART_SMALL,
    LED_SMALL,
    T5_SMALL,
    global_first_token,
    torch_bart,
    torch_led,
    torch_t5,
)
from tests.helpers.torch_parity import randomize_parameters

torch = pytest.importorskip("torch")

SOURCE_LENGTH, NEW_TOKENS = 9, 12
T5 = dataclasses.replace(
    T5_SMALL, vocab_size=23, tie_word_embeddings=False, scale_decoder_outputs=False
)
BART = dataclasses.replace(BART_SMALL, vocab_size=23, forced_bos_token_id=0)
LED = dataclasses.replace(LED_SMALL, vocab_size=23)


def sources(config: EncoderDecoderConfig, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(3, config.vocab_size, (count, SOURCE_LENGTH))
    mask = np.arange(SOURCE_LENGTH) < rng.integers(2, SOURCE_LENGTH + 1, count)[:, None]
    return {
        "input_ids": np.where(mask, ids, config.pad_token_id).astype(np.int32),
        "attention_mask": mask.astype(np.int32),
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns (PyTorch model, config, parameters) of T5, BART and LED."""
    found: dict[str, Any] = {}
    # With large random biases and tied embeddings, every text would be one repeated token.
    t5, bart = randomize_parameters(torch_t5(T5), std=0.6), torch_bart(BART)
    led = torch_led(LED, seed=1)  # generates the end token in some texts
    with torch.no_grad():
        for parameter_name, parameter in (*bart.named_parameters(), *led.named_parameters()):
            if parameter_name.endswith("bias"):
                parameter.mul_(0.1)
    for name, model in (("t5", t5), ("bart", bart), ("led", led)):
        folder: Path = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        flat, config = read_seq2seq_folder(folder)
        # In float64 rounding does not decide which of two nearly equal texts is the better one.
        found[name] = (model.double(), config, paths.unflatten(flat))
    return found


def check_ids(model: Any, settings: GenerationConfig, count: int, **options: Any) -> np.ndarray:
    torch_model, config, params = model
    batch = sources(config, count)
    if isinstance(config, LedConfig):
        options["global_attention_mask"] = global_first_token(batch["input_ids"])
    with torch.no_grad():
        expected = torch_model.generate(
            **{name: torch.from_numpy(array).long() for name, array in batch.items()},
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            **options,
        ).numpy()
    padded = np.full((count, NEW_TOKENS), config.pad_token_id)
    padded[:, : expected.shape[1] - 1] = expected[:, 1:]
    # Beam search of transformers pads with the end token if the padding id is 0.
    has_ended = np.cumsum(padded == config.eos_token_id, axis=1) - (padded == config.eos_token_id)
    padded[has_ended > 0] = config.pad_token_id
    found = np.asarray(
        generate_ids(
            params,
            **batch,
            text_indices=np.arange(count, dtype=np.int32),
            config=config,
            settings=settings,
            rules=token_rules(config),
        )
    )
    np.testing.assert_array_equal(found, padded)
    return found


def check_models(model: Any, count: int) -> None:
    greedy = check_ids(model, GenerationConfig(max_new_tokens=NEW_TOKENS), count, num_beams=1)
    ends = (greedy[:, :-1] == model[1].eos_token_id).any(axis=1)
    assert 0 < ends.mean() < 1, "some texts end, some are cut"
    assert len(np.unique(greedy, axis=0)) > count // 4
    beams = GenerationConfig(
        decoding=BeamSearch(num_beams=4, length_penalty=0.6), max_new_tokens=NEW_TOKENS
    )
    found = check_ids(model, beams, count, num_beams=4, length_penalty=0.6, early_stopping=False)
    assert not np.array_equal(found, greedy)


# test_rules_and_stopping has BART.
@pytest.mark.parametrize("name", ["t5", pytest.param("bart", marks=pytest.mark.slow), "led"])
def test_greedy_and_beam_search(models, name):
    check_models(models[name], count=16)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_greedy_and_beam_search_of_200_sources(models, name):
    check_models(models[name], count=200)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (
            GenerationConfig(
                decoding=BeamSearch(num_beams=3, early_stopping="when_full"),
                max_new_tokens=NEW_TOKENS,
                no_repeat_ngram_size=2,
            ),
            {"num_beams": 3, "early_stopping": True, "no_repeat_ngram_size": 2},
        ),
        (
            GenerationConfig(
                decoding=BeamSearch(
                    num_beams=2, length_penalty=2.0, early_stopping="when_impossible"
                ),
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=5,
            ),
            {"num_beams": 2, "length_penalty": 2.0, "early_stopping": "never",
             "min_new_tokens": 5},
        ),
        (
            GenerationConfig(
                decoding=Greedy(), max_new_tokens=NEW_TOKENS, no_repeat_ngram_size=3
            ),
            {"num_beams": 1, "no_repeat_ngram_size": 3},
        ),
    ],
    ids=["full, bigrams", "never, penalty, minimum", "greedy, trigrams"],
)  # fmt: skip
def test_rules_and_stopping(models, settings, options):
    check_ids(models["bart"], settings, 16, **options)
