"""Compares MPNet with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, biases and norms too; batches are padded with MPNet's id 1. The two
streams of MPNet's pretraining, which Hugging Face does not have, are compared with the original
code (microsoft/MPNet, `masked_permutation_net.py`) on the layers of Hugging Face's model.
families_test.py has what all families are compared in.
"""

from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import MaskedPermutedLM
from bert_jax.models.layers.config import PaddingOffsetPositions
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.mpnet.model import two_stream_mask
from bert_jax.objectives.masked_permuted_lm import MaskedPermutedLMObjective, predictions_of
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import (
    check_exported_texts,
    check_folder,
    check_texts,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["mpnet"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model


def test_tokenizer_and_texts(tmp_path):
    words = ["[CLS]", "[UNK]", "the", "cat", "sat", "##s", "on", "."]  # as in the published one
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
    tokenizer = transformers.MPNetTokenizer(vocab={w: i for i, w in enumerate(tokens)})
    tokenizer.save_pretrained(tmp_path / "torch")
    config = MPNetConfig(
        vocab_size=len(tokens), hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=30, positions=PaddingOffsetPositions(max_position_embeddings=26),
    )  # fmt: skip
    model = torch_model(config, "Model")
    loaded = check_folder(
        model, tmp_path, auto_class=transformers.AutoModel, config=config, parts=("pooler",),
        pad_token_id=1,
    )  # fmt: skip
    texts = ["The cat sat on the cats.", "a <mask> sat"]
    check_texts(loaded, tokenizer, texts)
    check_exported_texts(model, tokenizer, tmp_path / "exported", texts)
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert type(exported) is type(tokenizer)


def original_masks(a: int, b: int) -> tuple[Any, Any]:
    """Returns `make_query_and_content_mask(tensor, a, b)` of the original code, True = hidden."""
    later = torch.triu(torch.ones(b, b), 0)
    query = torch.cat((torch.ones(b, a - b), 1 - later, later), dim=-1)
    tokens = torch.cat([torch.zeros(a - b, b), torch.tril(torch.ones(b, b)), torch.zeros(b, b)])
    content = torch.cat((torch.ones(a + b, a - b), tokens, 1 - tokens), dim=-1)
    return query.eq(0), content.eq(0)


def original_order(batch: dict[str, np.ndarray], row: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the real positions of a row in a random order, the predicted ones last in theirs."""
    used = batch["masked_lm_weights"][row] > 0
    predicted = batch["masked_lm_positions"][row][used]
    predicted = predicted[np.argsort(batch["sampling_seeds"][row][used], kind="stable")]
    others = np.setdiff1d(np.flatnonzero(batch["attention_mask"][row]), predicted)
    return np.random.default_rng(row).permutation(others), predicted


def original_logits(model: Any, batch: dict[str, np.ndarray], row: int) -> np.ndarray:
    """Computes the logits of a row's predictions in their order, as `compute_mpnet` does."""
    others, predicted = original_order(batch, row)
    ids = batch["input_ids"][row].copy()
    masked_ids = ids[predicted]
    used = batch["masked_lm_weights"][row] > 0
    ids[batch["masked_lm_positions"][row][used]] = batch["masked_lm_ids"][row][used]
    tokens = np.concatenate([ids[others], ids[predicted], masked_ids, masked_ids])
    positions = torch.from_numpy(np.concatenate([others, predicted, predicted, predicted]))
    num_predicted = len(predicted)
    encoder, embeddings = model.mpnet.encoder, model.mpnet.embeddings
    x = embeddings.word_embeddings(torch.from_numpy(tokens))
    x = embeddings.LayerNorm(x + embeddings.position_embeddings(positions + 2))
    c, q = x[:-num_predicted], x[-num_predicted:]
    distances = positions[None, :-num_predicted] - positions[:-num_predicted, None]
    buckets = encoder.relative_position_bucket(distances, num_buckets=32)
    content_bias = encoder.relative_attention_bias(buckets).permute(2, 0, 1)
    query_bias = content_bias[:, -num_predicted:]
    query_mask, content_mask = original_masks(len(others) + num_predicted, num_predicted)
    for layer in encoder.layer:
        c, q = (
            original_layer(layer, stream, c, mask, bias)
            for stream, mask, bias in ((c, content_mask, content_bias), (q, query_mask, query_bias))
        )
    return model.lm_head(q).numpy()


def original_layer(layer: Any, stream: Any, content: Any, hidden: Any, bias: Any) -> Any:
    """Computes one layer of a stream, which attends to the content of the layer before."""
    attention = layer.attention.attn

    def heads(x: Any) -> Any:
        return x.view(len(x), attention.num_attention_heads, -1).transpose(0, 1)

    q, k, v = heads(attention.q(stream)), heads(attention.k(content)), heads(attention.v(content))
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + bias
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    context = (weights @ v).transpose(0, 1).reshape(len(stream), -1)
    x = layer.attention.LayerNorm(attention.o(context) + stream)
    return layer.output(layer.intermediate(x), x)


@pytest.fixture(scope="module")
def permuted_batch() -> dict[str, np.ndarray]:
    """Padded rows, whose numbers of predictions differ, with MPNet's ids of padding and mask."""
    batch = pretraining_batch(
        batch_size=5, seq_length=20, max_predictions_per_seq=7, vocab_size=103, mask_token_id=102
    )
    batch["input_ids"] = np.where(batch["attention_mask"] > 0, batch["input_ids"], 1)
    assert len({row.sum() for row in batch["masked_lm_weights"]}) > 2
    return batch


def test_masks_of_both_streams_are_those_of_the_original_code(permuted_batch):
    batch, length = permuted_batch, permuted_batch["input_ids"].shape[1]
    predictions = predictions_of({k: jax.numpy.asarray(v) for k, v in batch.items()})
    mask = np.asarray(two_stream_mask(predictions, length))
    for row in range(len(mask)):
        others, predicted = original_order(batch, row)
        entries = np.argsort(np.asarray(predictions.ranks[row]))[: len(predicted)]
        content = np.concatenate([others, predicted, length + entries])
        queries = length + batch["masked_lm_positions"].shape[1] + entries
        query_mask, content_mask = original_masks(len(others) + len(predicted), len(predicted))
        np.testing.assert_array_equal(mask[row][np.ix_(queries, content)], ~query_mask)
        np.testing.assert_array_equal(mask[row][np.ix_(content, content)], ~content_mask)
        assert not mask[row][:, queries].any()
        # Position compensation: a query attends to each position once, as a token or as a mask.
        assert (mask[row][np.ix_(queries, content)].sum(1) == len(others) + len(predicted)).all()


@pytest.mark.parametrize("is_packed", [False, True])
def test_masked_and_permuted_loss_equals_the_original_code(tmp_path, permuted_batch, is_packed):
    model = torch_model(SMALL, "ForMaskedLM")
    model.save_pretrained(tmp_path)
    params = load_encoder(tmp_path).params
    objective = MaskedPermutedLMObjective(MaskedPermutedLM(model=SMALL, mask_token_id=102))
    assert paths.flatten(objective.abstract()).keys() <= paths.flatten(params).keys()
    batch = {name: permuted_batch[name] for name in objective.batch_fields()}
    if is_packed:
        batch = two_in_a_row(batch)
    batch = {name: jax.numpy.asarray(value) for name, value in batch.items()}
    params = {name: params[name] for name in objective.abstract()}

    @jax.jit
    def loss_of(params: Any, batch: Any) -> Any:
        return objective.compute_loss(params, batch, objective.loss_denominators(batch), None)

    with jax.default_matmul_precision("highest"):
        loss, metrics, _ = loss_of(params, batch)
    losses = []
    for row in range(len(permuted_batch["input_ids"])):
        used = permuted_batch["masked_lm_weights"][row] > 0
        order = np.argsort(permuted_batch["sampling_seeds"][row][used], kind="stable")
        labels = torch.from_numpy(permuted_batch["masked_lm_ids"][row][used][order]).long()
        with torch.no_grad():
            logits = torch.from_numpy(original_logits(model, permuted_batch, row))
            losses += torch.nn.functional.cross_entropy(logits, labels, reduction="none").tolist()
    assert metrics["mlm_loss"].weight == len(losses)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-6)


def two_in_a_row(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Packs the rows of a batch two by two (the last with an empty one)."""
    length = batch["input_ids"].shape[1]
    empty = {name: np.zeros_like(value[:1]) for name, value in batch.items()}
    empty["input_ids"] += 1
    rows = {name: np.concatenate([value, empty[name]]) for name, value in batch.items()}
    rows["packing_ids"] = rows["attention_mask"] * np.tile([[1], [2]], (3, 1)).astype(np.int32)
    rows["position_ids"] = np.tile(np.arange(length, dtype=np.int32), (6, 1))
    rows["masked_lm_positions"] = rows["masked_lm_positions"] + np.tile([[0], [length]], (3, 1))
    return {name: value.reshape(3, -1) for name, value in rows.items()}
