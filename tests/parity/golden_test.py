"""Compares BERT with stored outputs of axlearn (`reference/axlearn_bert_golden.npz`)."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.losses import cross_entropy
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import run_forward
from bert_jax.models.parameters import validate_params
from bert_jax.params import paths

CONFIG = BertConfig(
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    positions=LearnedPositions(max_position_embeddings=20),
    hidden_act="gelu_tanh",
)
PAD, IGNORED = 0, -100

MASKED_LM = ("test_for_mlm", "test_for_mlm_with_padding")
CLASSIFICATION = (
    "test_sequence_classification_1",
    "test_sequence_classification_2",
    "test_sequence_classification_3",
    "test_sequence_binary_classification",
    "test_multiple_choice_classification",
)


def read_case(shared: Path, case: str) -> dict[str, np.ndarray]:
    with np.load(shared / "reference" / "axlearn_bert_golden.npz") as file:
        prefix = f"{case}/"
        return {name.removeprefix(prefix): file[name] for name in file if name.startswith(prefix)}


def parameters(case: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns axlearn's parameters by the paths of this project."""
    found: dict[str, np.ndarray] = {}

    def take(target: str, source: str, shape: tuple[int, ...] | None = None) -> None:
        value = case[f"params/{source}"]
        found[target] = value if shape is None else value.reshape(shape)

    def norm(target: str, source: str) -> None:
        take(f"{target}/scale", f"{source}/scale")
        take(f"{target}/bias", f"{source}/bias")

    tables = {"word": "token_emb", "position": "pos_emb", "token_type": "type_emb"}
    for name, source in tables.items():
        take(f"encoder/embeddings/{name}_embeddings/embedding", f"encoder/emb/{source}/weight")
    table = found["encoder/embeddings/position_embeddings/embedding"]
    found["encoder/embeddings/position_embeddings/embedding"] = table[0]
    norm("encoder/embeddings/norm", "encoder/emb/norm")
    for layer in range(2):
        target, source = f"encoder/layers/{layer}", f"encoder/transformer/layer{layer}"
        attention = f"{source}/self_attention/attention"
        for name in ("query", "key", "value"):
            projection = f"{attention}/i_proj/{name[0]}_proj"
            take(f"{target}/attention/{name}/kernel", f"{projection}/weight", (16, 16))
            take(f"{target}/attention/{name}/bias", f"{projection}/bias", (16,))
        # Only the output projection is stored as [out, heads, head size].
        output = case[f"params/{attention}/o_proj/weight"].reshape(16, 16).T
        found[f"{target}/attention/output/kernel"] = output
        take(f"{target}/attention/output/bias", f"{attention}/o_proj/bias")
        norm(f"{target}/attention_norm", f"{source}/self_attention/norm")
        for name, linear in [("intermediate", "linear1"), ("output", "linear2")]:
            take(f"{target}/feed_forward/{name}/kernel", f"{source}/feed_forward/{linear}/weight")
            take(f"{target}/feed_forward/{name}/bias", f"{source}/feed_forward/{linear}/bias")
        norm(f"{target}/feed_forward_norm", f"{source}/feed_forward/norm")
    if "params/head/transform/linear/weight" in case:
        take("masked_lm/transform/kernel", "head/transform/linear/weight")
        take("masked_lm/transform/bias", "head/transform/linear/bias")
        norm("masked_lm/norm", "head/transform/norm")
        take("masked_lm/bias", "head/output_bias")
    else:
        take("pooler/dense/kernel", "head/pooler/linear/weight")
        take("pooler/dense/bias", "head/pooler/linear/bias")
    return found


def compute(case: dict[str, np.ndarray]):
    flat = parameters(case)
    validate_params(flat, CONFIG, "golden")
    ids = case["inputs/input_ids"].reshape(-1, 20).astype(np.int32)
    types = case.get("inputs/token_type_ids", np.zeros_like(ids)).reshape(-1, 20)
    mask = ids != PAD
    if "inputs/padding_mask" in case:  # True at real tokens, despite its name
        np.testing.assert_array_equal(case["inputs/padding_mask"].reshape(-1, 20), mask)
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    fields = {name: array.astype(np.int32) for name, array in batch.items()}
    return run_forward(paths.unflatten(flat), CONFIG, fields), ids


@pytest.mark.parametrize("name", MASKED_LM)
def test_masked_lm(shared, name):
    case = read_case(shared, name)
    found, ids = compute(case)
    real = ids != PAD
    expected = case["outputs/hidden_states_last"]
    np.testing.assert_allclose(found["hidden_states"][-1][real], expected[real], rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        found["masked_lm"][real], case["outputs/logits"][real], rtol=0, atol=1e-5
    )
    labels = case["inputs/target_labels"]
    chosen = labels != IGNORED
    losses = cross_entropy(jnp.asarray(found["masked_lm"][chosen]), jnp.asarray(labels[chosen]))
    np.testing.assert_allclose(np.mean(losses), case["outputs/loss"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_classification_from_pooled_output(shared, name):
    case = read_case(shared, name)
    found, _ = compute(case)
    kernel, bias = case["params/head/output/weight"], case["params/head/output/bias"]
    logits = (found["pooled"] @ kernel + bias).reshape(case["outputs/logits"].shape)
    assert np.std(case["outputs/logits"]) > 1e-3
    np.testing.assert_allclose(logits, case["outputs/logits"], rtol=0, atol=1e-5)
