"""Tests filled masks: probabilities, order, and texts that cannot be filled."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import run_forward
from bert_jax.predict.fill_mask import FillMask
from bert_jax.pretrained.load import LoadedModel

TEXTS = [
    "the [MASK] man mends a [MASK] by the sea",
    "a [MASK]",
]


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return small_model(tmp_path)


def reference(model: LoadedModel, text: str, top: int) -> list[list[tuple[int, float]]]:
    """Fills masks of one text at a time without padding, from the logits of all positions."""
    vocabulary = model.tokenizer
    assert vocabulary is not None
    ids = np.array([[vocabulary.cls_id, *vocabulary.encode(text), vocabulary.sep_id]], np.int32)
    batch = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": np.ones_like(ids),
    }
    logits = run_forward(model.params, model.config, batch)["masked_lm"][0].astype(np.float64)
    found = []
    for position in np.flatnonzero(ids[0] == vocabulary.mask_id):
        shares = np.exp(logits[position, : vocabulary.vocab_size])
        shares /= shares.sum()
        best = np.argsort(-shares)[:top]
        found.append([(int(i), float(shares[i])) for i in best])
    return found


def test_candidates_equal_full_logits_for_all_batch_sizes(model):
    answers = FillMask(model, top_k=3)(TEXTS)
    assert [answer["text"] for answer in answers] == TEXTS
    for answer, text in zip(answers, TEXTS, strict=True):
        expected = reference(model, text, top=3)
        assert len(answer["masks"]) == len(expected)
        for mask, best in zip(answer["masks"], expected, strict=True):
            found = mask["candidates"]
            assert [candidate["id"] for candidate in found] == [i for i, _ in best]
            np.testing.assert_allclose(
                [candidate["probability"] for candidate in found], [p for _, p in best], atol=1e-6
            )
            assert all(model.tokenizer.id_to_token(c["id"]) == c["token"] for c in found)


def test_one_text_gives_one_answer_and_empty_texts_have_no_masks(model):
    fill = FillMask(model, top_k=3)
    first, empty, second = fill([TEXTS[0], " ", TEXTS[1]])
    assert [len(first["masks"]), len(second["masks"])] == [2, 1]
    assert empty == {"text": " ", "masks": []}
    assert fill(TEXTS[1]) == fill([TEXTS[1]])[0]
    assert fill([""]) == [{"text": "", "masks": []}]


def test_padding_of_the_embedding_table_is_no_candidate(tmp_path):
    model = small_model(tmp_path, vocab_size=24)
    (answer,) = FillMask(model, top_k=18)(TEXTS[1:2])
    candidates = answer["masks"][0]["candidates"]
    assert sorted(candidate["id"] for candidate in candidates) == list(range(18))
    assert sum(candidate["probability"] for candidate in candidates) == pytest.approx(1, abs=1e-5)


def test_texts_without_a_mask_are_rejected(model, tmp_path):
    fill = FillMask(model)
    with pytest.raises(UserError, match=r"no \[MASK\] in the text 'the sea'"):
        fill(["a [MASK]", "the sea"])
    with pytest.raises(UserError, match="has 23 tokens, this model reads 20"):
        fill(["the " * 20 + "[MASK]"])
    with pytest.raises(UserError, match="top_k is 0; expected 1 to 18"):
        FillMask(model, top_k=0)
    with pytest.raises(UserError, match="small model has no masked-LM head"):
        FillMask(dataclasses.replace(model, missing=("masked_lm",)))
    with pytest.raises(UserError, match="small model has no tokenizer files"):
        FillMask(dataclasses.replace(model, tokenizer=None))
    short = small_model(tmp_path / "short", positions=LearnedPositions(max_position_embeddings=2))
    with pytest.raises(UserError, match="expected at least 3"):
        FillMask(short)(["[MASK]"])
