"""Compares the loss of SpanBERT with PyTorch, in the layout of the original code.

The reference is Hugging Face's BERT, the head of SpanBERT's `pair_bert.py` and the loss of its
`spanbert_loss.py`, written from their description: one row of targets for each span.
Covers bert_jax/models/heads/modules.py and the span boundary loss.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_config
from bert_jax.apps.testing.random_corpus import CLS, MASK, SEP, random_vocab_arrays
from bert_jax.config.data import SpanMasking
from bert_jax.config.objectives import Pretraining
from bert_jax.data.pretraining.masking import mask_tokens
from bert_jax.data.pretraining.rng import example_keys
from bert_jax.models.bert.huggingface import TABLES
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from tests.helpers.torch_parity import randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTH, ROWS, VOCAB, WIDTH = 40, 6, 103, 24
CONFIG = dataclasses.replace(
    small_config(vocab_size=VOCAB, hidden_size=WIDTH, num_attention_heads=3),
    positions=dataclasses.replace(small_config().positions, max_position_embeddings=LENGTH),
)


class PairTargetHead(torch.nn.Module):
    """Implements `BertPairTargetPredictionHead`: all 15 positions of each span."""

    def __init__(self):
        super().__init__()
        self.position_embeddings = torch.nn.Embedding(15, 200)
        self.linear1 = torch.nn.Linear(2 * WIDTH + 200, WIDTH)
        self.layer_norm1 = torch.nn.LayerNorm(WIDTH, eps=1e-12)
        self.linear2 = torch.nn.Linear(WIDTH, WIDTH)
        self.layer_norm2 = torch.nn.LayerNorm(WIDTH, eps=1e-12)
        self.bias = torch.nn.Parameter(torch.zeros(VOCAB))

    def forward(self, hidden, pairs, word_embeddings):
        """Maps hidden states [B, L, D] and pairs [S, 3] (row, left, right) to logits [S, 15, V]."""
        sides = [hidden[pairs[:, 0], pairs[:, side]] for side in (1, 2)]
        sides = [side[:, None].expand(-1, 15, -1) for side in sides]
        positions = self.position_embeddings.weight[None].expand(len(pairs), -1, -1)
        inputs = torch.cat([*sides, positions], dim=-1)
        states = self.layer_norm1(torch.nn.functional.gelu(self.linear1(inputs)))
        states = self.layer_norm2(torch.nn.functional.gelu(self.linear2(states)))
        return states @ word_embeddings.T + self.bias

    def flat_params(self) -> dict[str, np.ndarray]:
        """Returns the parameters by the paths of `SpanBoundaryHead`."""
        names = {"linear": "kernel", "layer_norm": "scale", "position_embeddings": "embedding"}
        flat = {}
        for name, tensor in self.named_parameters():
            module, _, leaf = name.rpartition(".")
            if leaf == "weight":
                leaf = names[module.rstrip("12")]
            array = tensor.detach().numpy()
            flat["/".join(filter(None, ("span_boundary", module, leaf)))] = (
                array.T if leaf == "kernel" else array
            )
        return flat


def make_batch() -> dict[str, np.ndarray]:
    """Returns masked rows of different lengths, some with spans of more than 15 tokens."""
    table = random_vocab_arrays(VOCAB, word_start_fraction=0.3)
    rng = np.random.default_rng(0)
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, ROWS)
    ids = rng.choice(table.maskable_ids, (ROWS, LENGTH)).astype(np.int32)
    ids[:, 0], ids[np.arange(ROWS), lengths - 1] = CLS, SEP
    attention = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    keys = example_keys(np.zeros(ROWS, np.uint64), np.arange(ROWS))
    config = SpanMasking(mlm_probability=0.6)
    fields = mask_tokens(ids, attention, keys, config, 30, table)
    return {"token_type_ids": ids * 0, "attention_mask": attention, **fields}


def test_loss_and_gradient_equal_the_original_code() -> None:
    batch = make_batch()
    assert batch["span_target_offsets"].max() == 14
    hf_config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        attn_implementation="eager",
    )
    model = randomize_parameters(transformers.BertForPreTraining(hf_config), std=0.1)
    head = randomize_parameters(PairTargetHead(), std=0.3, seed=1)
    names = TABLES.tied.parameter_names(model.state_dict(), "model")
    tensors = {name: model.state_dict()[name].numpy() for name in names}
    flat = TABLES.tied.from_external(tensors, "model") | head.flat_params()
    objective = PretrainingObjective(
        Pretraining(model=CONFIG, mask_token_id=MASK, nsp_weight=0.0, sbo_weight=0.5)
    )
    fields: Any = {name: batch[name] for name in objective.batch_fields()}

    def loss_of(params):
        denominators = objective.loss_denominators(fields)
        return objective.compute_loss(params, fields, denominators, None).loss

    loss, grads = jax.jit(jax.value_and_grad(loss_of))(paths.unflatten(flat))
    expected = torch_loss(model, head, batch)
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), abs=1e-5)
    flat_grads = paths.flatten(jax.device_get(grads))
    word_embeddings = model.bert.embeddings.word_embeddings.weight
    for path, parameter in {
        "span_boundary/linear1/kernel": head.linear1.weight,
        "span_boundary/position_embeddings/embedding": head.position_embeddings.weight,
        "encoder/embeddings/word_embeddings/embedding": word_embeddings,
    }.items():
        found = flat_grads[path].T if path.endswith("kernel") else flat_grads[path]
        assert np.abs(found).max() > 3e-4
        np.testing.assert_allclose(found, parameter.grad.numpy(), atol=1e-5, err_msg=path)


def torch_loss(model, head, batch):
    """Computes MLM sum / masked + 0.5 SBO sum / (targets + 1), with a list of spans."""
    labels = torch.full((ROWS, LENGTH), -100)
    pairs, targets = [], []
    for row in range(ROWS):
        used = batch["masked_lm_weights"][row] > 0
        positions = batch["masked_lm_positions"][row][used].tolist()
        originals = dict(zip(positions, batch["masked_lm_ids"][row][used].tolist(), strict=True))
        labels[row, positions] = torch.tensor(list(originals.values()))
        end = int(batch["attention_mask"][row].sum()) - 1  # of [SEP]
        for first in (p for p in positions if p - 1 not in originals):
            last = first
            while last + 1 in originals:
                last += 1
            if first > 1 and last < end - 1:
                tokens = [originals[p] for p in range(first, last + 1)][:15]
                pairs.append((row, first - 1, last + 1))
                targets.append(tokens + [-100] * (15 - len(tokens)))
    inputs = {
        name: torch.from_numpy(batch[name]).long()
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    output = model(**inputs, output_hidden_states=True)
    cross_entropy = torch.nn.functional.cross_entropy
    mlm = cross_entropy(output.prediction_logits.flatten(0, 1), labels.flatten(), reduction="sum")
    word_embeddings = model.bert.embeddings.word_embeddings.weight
    logits = head(output.hidden_states[-1], torch.tensor(pairs), word_embeddings)
    flat_targets = torch.tensor(targets).flatten()
    sbo = cross_entropy(logits.flatten(0, 1), flat_targets, reduction="sum")
    num_targets = int((flat_targets >= 0).sum())
    assert num_targets == batch["span_target_weights"].sum() > 30
    return mlm / (labels >= 0).sum() + 0.5 * sbo / (num_targets + 1)
