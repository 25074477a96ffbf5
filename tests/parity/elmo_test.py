"""Compares the loss and the gradients of ELMo with PyTorch, written from the paper."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.word_vectors.elmo_model import ElmoConfig, ElmoObjective
from bert_jax.params import paths

torch = pytest.importorskip("torch")
functional = torch.nn.functional

CONFIG = ElmoConfig(
    vocab_size=11,
    num_characters=9,
    character_size=3,
    filters=((1, 2), (3, 4)),
    projection_size=5,
    cell_size=7,
    max_word_length=6,
)


def reference_layers(p: dict[str, Any], characters: Any, lengths: list[int]) -> list[list[Any]]:
    """Computes [words, first, second layer] of both directions with PyTorch's layers.

    `characters` is [B, L, M]; the reversed direction runs over the reversed words of each sentence.
    """
    embedded = p["characters/embedding"][characters].flatten(0, 1).transpose(1, 2)
    pooled: list[Any] = []
    for i, (width, number) in enumerate(CONFIG.filters):
        kernel = p[f"characters/convolutions/{i}/kernel"]
        weight = kernel.reshape(width, CONFIG.character_size, number).permute(2, 1, 0)
        bias = p[f"characters/convolutions/{i}/bias"]
        pooled.append(functional.relu(functional.conv1d(embedded, weight, bias)).max(dim=2).values)
    x = torch.cat(pooled, dim=1)
    for i in range(CONFIG.num_highway_layers):
        gate, transform = (
            x @ p[f"characters/{kind}/{i}/kernel"] + p[f"characters/{kind}/{i}/bias"]
            for kind in ("gates", "transforms")
        )
        x = torch.sigmoid(gate) * functional.relu(transform) + (1 - torch.sigmoid(gate)) * x
    words = x @ p["characters/projection/kernel"] + p["characters/projection/bias"]
    words = words.reshape(*characters.shape[:2], -1)

    def run_lstm(name: str, inputs: Any, reverse: bool) -> Any:
        size, cells = CONFIG.projection_size, CONFIG.cell_size
        lstm = torch.nn.LSTM(size, cells, proj_size=size, batch_first=True, dtype=torch.float64)
        kernel, bias = p[f"{name}/gates/kernel"], p[f"{name}/gates/bias"]
        one_more = torch.zeros_like(bias)
        one_more[cells : 2 * cells] = 1
        weights = {
            "weight_ih_l0": kernel[:size].T,
            "weight_hh_l0": kernel[size:].T,
            "bias_ih_l0": bias + one_more,
            "bias_hh_l0": torch.zeros_like(bias),
            "weight_hr_l0": p[f"{name}/projection/kernel"].T,
        }
        outputs = torch.zeros_like(inputs)
        for row, length in enumerate(lengths):
            sequence = inputs[row : row + 1, :length]
            sequence = sequence.flip(1) if reverse else sequence
            states, _ = torch.func.functional_call(lstm, weights, (sequence,))
            outputs[row, :length] = (states.flip(1) if reverse else states)[0]
        return outputs

    directions: list[list[Any]] = []
    for name, reverse in (("forward_layers", False), ("backward_layers", True)):
        first = run_lstm(f"{name}/0", words, reverse)
        directions.append([words, first, first + run_lstm(f"{name}/1", first, reverse)])
    return directions


def test_the_loss_and_its_gradients_equal_a_reference():
    rng, lengths = np.random.default_rng(0), [6, 4]
    objective = ElmoObjective(CONFIG)
    params = objective.init(jax.random.key(0))
    characters = rng.integers(0, 9, (2, 6, 6)).astype(np.int32)
    labels = rng.integers(0, 11, (2, 6)).astype(np.int32)
    mask = (np.arange(6) < np.array(lengths)[:, None]).astype(np.int32)
    batch = {"characters": characters, "labels": labels, "attention_mask": mask}
    batch = jax.tree.map(jnp.asarray, batch)
    denominators = objective.loss_denominators(batch)
    loss, gradients = jax.value_and_grad(
        lambda params: objective.compute_loss(params, batch, denominators, None).loss
    )(params)
    tensors = {
        name: torch.tensor(np.asarray(value), dtype=torch.float64, requires_grad=True)
        for name, value in paths.flatten(params).items()
    }
    forward, backward = reference_layers(tensors, torch.tensor(characters), lengths)
    total, number = torch.zeros((), dtype=torch.float64), 0
    for row, length in enumerate(lengths):
        for position in range(length):
            for states, other in ((forward, position + 1), (backward, position - 1)):
                if 0 <= other < length:
                    state = states[-1][row, position]
                    logits = state @ tensors["softmax/kernel"] + tensors["softmax/bias"]
                    total = total - torch.log_softmax(logits, 0)[int(labels[row, other])]
                    number += 1
    (total / number).backward()
    assert float(denominators["lm"]) == number == 16
    assert float(loss) == pytest.approx(total.item() / number, rel=1e-5)
    for name, gradient in paths.flatten(gradients).items():
        expected = np.asarray(tensors[name].grad)
        np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=2e-6, err_msg=name)
    found = objective.network.merge(params)(batch["characters"], batch["attention_mask"])
    for states, reference in zip(found, (forward, backward), strict=True):
        expected = torch.stack(reference, dim=2).detach().numpy() * mask[..., None, None]
        masked = np.asarray(states) * mask[..., None, None]
        np.testing.assert_allclose(masked, expected, rtol=1e-4, atol=1e-5)
