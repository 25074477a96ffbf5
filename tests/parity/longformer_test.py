"""Compares Longformer with Hugging Face's PyTorch classes in float32: outputs and folders.

Every parameter is random, biases and norms too; batches are padded. Only real tokens are compared:
the hidden states of padding have no meaning.
"""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.export.export import export
from bert_jax.models.heads.config import QuestionAnsweringHead, TaskHead
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.longformer.huggingface import TABLES
from bert_jax.models.model import build_network
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import assert_same_tensors
from tests.helpers.torch_parity import (
    HEADS,
    each_head_of_family,
    jax_head_outputs,
    load_exported,
    torch_head_outputs,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["longformer"]
SMALL, LONG, torch_model = FAMILY.small, FAMILY.medium, FAMILY.torch_model

TOLERANCE = 1e-5
PAD, SEPARATOR = 1, 2


@functools.cache
def cached_model(config: LongformerConfig, name: str) -> Any:
    return torch_model(config, name)


def params_of(model: Any) -> dict[str, Any]:
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    heads = ("longformer.", "lm_head.", "classifier.", "qa_out")
    state = {k if k.startswith(heads) else f"longformer.{k}": v for k, v in state.items()}
    return paths.unflatten(TABLES.tied.from_external(state, "torch"))


def padded_pairs(head: TaskHead, seq_length: int, vocab_size: int) -> Any:
    """Returns pairs of random texts with `</s></s>` between them and `</s>` at the end."""
    batch = fine_tuning_batch(head, batch_size=3, seq_length=seq_length, vocab_size=vocab_size)
    for prefix in ("", "choice_"):
        if f"{prefix}input_ids" not in batch:
            continue
        mask = batch[f"{prefix}attention_mask"]
        ids = np.where(mask > 0, batch[f"{prefix}input_ids"], PAD).astype(np.int32)
        for row, length in zip(ids.reshape(-1, seq_length), mask.sum(-1).reshape(-1), strict=True):
            row[[length // 3, length // 3 + 1, length - 1]] = SEPARATOR
        batch[f"{prefix}input_ids"] = ids
        batch[f"{prefix}token_type_ids"] = np.zeros_like(ids)
    return batch


def torch_inputs(batch: Any) -> dict[str, Any]:
    return {
        name: torch.from_numpy(batch[field]).long()
        for name in ("input_ids", "attention_mask", "global_attention_mask")
        for field in (name, f"choice_{name}")
        if field in batch
    }


# Windows that differ in each layer, and many blocks with global tokens.
@pytest.mark.parametrize(
    ("config", "length", "is_global"),
    [
        pytest.param(SMALL, 23, False, id="small-local"),
        pytest.param(LONG, 300, True, id="long-global"),
        pytest.param(SMALL, 23, True, id="small-global", marks=pytest.mark.slow),
        pytest.param(LONG, 300, False, id="long-local", marks=pytest.mark.slow),
    ],
)
def test_hidden_states_and_masked_lm_logits(config, length, is_global):
    model = cached_model(config, "ForMaskedLM")
    batch = padded_pairs(QuestionAnsweringHead(), length, config.vocab_size)
    real = batch["attention_mask"] > 0
    inputs = torch_inputs(batch)
    if is_global:  # different numbers of global tokens, among them the last token and padding
        marks = np.random.default_rng(0).random(real.shape) < 0.05
        marks[0, real[0].sum() - 1] = marks[2, -1] = True
        inputs["global_attention_mask"] = torch.from_numpy(marks).long()
        assert len(set((marks & real).sum(1))) > 1 and (marks & real).sum(1).max() <= 20
    with torch.no_grad():
        expected = model(**inputs, output_hidden_states=True)
    arrays = {name: tensor.numpy().astype(np.int32) for name, tensor in inputs.items()}
    params = params_of(model)

    @jax.jit
    def forward(params, arrays):
        network = build_network(config, ("masked_lm",)).merge(params)
        output = network.encoder(**arrays, output_hidden_states=True)
        return output.hidden_states, network.masked_lm_logits(output.last_hidden_state)

    hidden_states, logits = forward(params, arrays)
    for layer, (a, b) in enumerate(zip(hidden_states, expected.hidden_states, strict=True)):
        np.testing.assert_allclose(
            np.asarray(a)[real], b.numpy()[real], atol=TOLERANCE, err_msg=f"{layer}"
        )
    assert expected.logits.std() > 0.05
    np.testing.assert_allclose(
        np.asarray(logits)[real], expected.logits.numpy()[real], atol=TOLERANCE
    )


@pytest.mark.parametrize(
    ("config", "length", "head_name"),
    [
        (SMALL, 20, "sequence"),
        (LONG, 280, "span"),  # all tokens of the question are global
        *(
            pytest.param(SMALL, 20, name, marks=pytest.mark.slow)
            for name in HEADS
            if name != "sequence"
        ),
        *(pytest.param(LONG, 280, name, marks=pytest.mark.slow) for name in ("sequence", "choice")),
    ],
)
def test_task_head_logits(config, length, head_name):
    head, name, fields = HEADS[head_name]
    model = torch_model(config, f"For{name}", **fields)
    batch = padded_pairs(head, length, config.vocab_size)
    if config is LONG:  # Hugging Face has no limit of global tokens
        config = LongformerConfig(**{**vars(config), "max_global_tokens": 280})
    found = jax_head_outputs(params_of(model), config, head, batch)
    expected = torch_head_outputs(model, torch_inputs(batch))
    assert found.keys() == expected.keys()
    for output, values in expected.items():
        assert values.std() > 0.005
        of_tokens = values.shape[:2] == batch.get("attention_mask", np.empty((0, 0))).shape
        real = batch["attention_mask"] > 0 if of_tokens else slice(None)
        np.testing.assert_allclose(
            found[output][real], values[real], rtol=0, atol=TOLERANCE, err_msg=output
        )


@each_head_of_family
def test_task_head_folders_both_ways(tmp_path, head_name):
    head, name, fields = HEADS[head_name]
    model = torch_model(SMALL, f"For{name}", **fields)
    model.save_pretrained(tmp_path / "torch")
    loaded = load_encoder(tmp_path / "torch")
    assert loaded.head == head and loaded.config == SMALL
    assert export(loaded, tmp_path / "exported") <= TOLERANCE
    reopened = load_exported(getattr(transformers, f"AutoModelFor{name}"), tmp_path / "exported")
    assert_same_tensors(model, reopened)


def test_scanned_layers_equal_unrolled_ones():
    params = params_of(cached_model(LONG, "ForMaskedLM"))
    batch = padded_pairs(QuestionAnsweringHead(), 280, LONG.vocab_size)
    unrolled, scanned = (
        jax.jit(
            lambda params, compute=compute: (
                build_network(LONG, ("masked_lm",), None, compute)
                .merge(params)
                .encode(batch)
                .last_hidden_state
            )
        )(params)
        for compute in (ComputeConfig(), ComputeConfig(layer_loop="scanned"))
    )
    np.testing.assert_allclose(scanned, unrolled, rtol=0, atol=1e-5)
