"""Compares ALBERT with Hugging Face's PyTorch classes in float32: outputs, training, folders.

Every parameter is random, biases and norms too, so that the layers of all groups differ. Only real
tokens are compared: the hidden states of padding have no meaning.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.export.export import export
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.albert.huggingface import TABLES
from bert_jax.models.layers.config import (
    ComputeConfig,
    Gelu,
    LearnedPositions,
    Scanned,
)
from bert_jax.models.model import run_forward
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.pretrained.load import load_model
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step
from tests.helpers.folder_parity import (
    assert_same_tensors,
    check_head_folder,
    check_head_outputs,
    config_fields,
)
from tests.helpers.torch_parity import (
    each_head_of_family,
    each_head_of_second_size,
    load_exported,
    randomize_parameters,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
GROUPS = AlbertConfig(
    vocab_size=103,
    embedding_size=20,
    hidden_size=48,
    num_hidden_layers=3,
    num_hidden_groups=2,
    inner_group_num=2,
    num_attention_heads=3,
    intermediate_size=70,
    positions=LearnedPositions(max_position_embeddings=42),
)
# Hugging Face maps the embeddings to the hidden size also if the sizes are equal.
EQUAL_WIDTHS = AlbertConfig(
    vocab_size=300,
    embedding_size=128,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    hidden_act=Gelu(),
    positions=LearnedPositions(max_position_embeddings=64),
)
both_sizes = pytest.mark.parametrize("config", [GROUPS, EQUAL_WIDTHS], ids=["groups", "equal"])


def torch_model(config: AlbertConfig, name: str, seed: int = 0, **fields: Any) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    hf_config = transformers.AlbertConfig(
        **config_fields(config),
        embedding_size=config.embedding_size,
        num_hidden_groups=config.num_hidden_groups,
        inner_group_num=config.inner_group_num,
        **fields,
    )
    model = getattr(transformers, f"Albert{name}")(hf_config)
    return randomize_parameters(model, std=0.05, seed=seed)


def params_of(model: Any) -> dict[str, Any]:
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    return paths.unflatten(TABLES.tied.from_external(state, "torch"))


def random_batch(config: AlbertConfig, seq_length: int = 24, **changes: Any) -> Any:
    sizes = {"batch_size": 4, "max_predictions_per_seq": 4, "vocab_size": config.vocab_size}
    return pretraining_batch(**{**sizes, **changes}, seq_length=seq_length)


def torch_fields(batch: Any, prefix: str = "") -> dict[str, Any]:
    names = ("input_ids", "token_type_ids", "attention_mask")
    return {name: torch.from_numpy(batch[f"{prefix}{name}"]).long() for name in names}


@both_sizes
def test_hidden_states_and_pretraining_logits(config):
    model, batch = torch_model(config, "ForPreTraining"), random_batch(config)
    with torch.no_grad():
        expected = model(**torch_fields(batch), output_hidden_states=True)
    found = run_forward(params_of(model), config, batch)
    real = batch["attention_mask"] > 0
    assert 0.5 < real.mean() < 1
    states = zip(found["hidden_states"], expected.hidden_states, strict=True)
    for layer, (a, b) in enumerate(states):
        np.testing.assert_allclose(a[real], b.numpy()[real], atol=TOLERANCE, err_msg=f"{layer}")
    logits = expected.prediction_logits.numpy()
    assert logits.std() > 0.05
    np.testing.assert_allclose(found["masked_lm"][real], logits[real], atol=TOLERANCE)
    np.testing.assert_allclose(found["sentence_order"], expected.sop_logits.numpy(), atol=TOLERANCE)


def test_pooler_and_the_longest_sequence():
    model = torch_model(GROUPS, "Model")
    batch = random_batch(GROUPS, seq_length=42, padding=False)
    with torch.no_grad():
        expected = model(**torch_fields(batch)).pooler_output.numpy()
    state = {f"albert.{name}": tensor.numpy() for name, tensor in model.state_dict().items()}
    params = paths.unflatten(TABLES.tied.from_external(state, "torch"))
    found = run_forward(params, GROUPS, batch)["pooled"]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@each_head_of_family
def test_task_heads_and_their_folders(tmp_path, head_name):
    config = dataclasses.replace(GROUPS, num_hidden_layers=2)  # compiles faster
    check_head_folder(torch_model, config, head_name, tmp_path)


@each_head_of_second_size
def test_task_heads_with_equal_widths(tmp_path, head_name):
    check_head_outputs(torch_model, EQUAL_WIDTHS, head_name, tmp_path)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("Model", ("masked_lm", "sentence_order")),
        ("ForMaskedLM", ("pooler", "sentence_order")),
        ("ForPreTraining", ()),
    ],
)
def test_pretrained_folders_come_back_bit_identical(tmp_path, name, missing):
    model = torch_model(EQUAL_WIDTHS, name)
    model.save_pretrained(tmp_path / "torch")
    loaded = load_model(tmp_path / "torch")
    assert loaded.config == EQUAL_WIDTHS and loaded.missing == missing
    export(loaded, tmp_path / "exported")
    auto_class = getattr(transformers, f"AutoModel{name.removeprefix('Model')}")
    assert_same_tensors(model, load_exported(auto_class, tmp_path / "exported"))
    third = paths.flatten(load_model(tmp_path / "exported").params)
    for path, leaf in paths.flatten(loaded.params).items():
        np.testing.assert_array_equal(third[path], leaf)


STEPS, WARMUP, PEAK, CLIP = 20, 5, 2e-3, 1.0
TRAIN = TrainConfig(
    phases=(Phase(steps=STEPS, seq_length=24, batch_size=4, max_predictions_per_seq=4),),
    optimizer=AdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01),
    schedule=WarmupLinear(peak_learning_rate=PEAK, warmup_steps=WARMUP),
    max_grad_norm=CLIP,
)


@pytest.mark.slow  # albert_training_test.py takes the same steps with LAMB
def test_twenty_training_steps():
    config = dataclasses.replace(GROUPS, hidden_act=Gelu())
    model = torch_model(config, "ForPreTraining", seed=3, classifier_dropout_prob=0.0)
    # No example has the id 0: `torch.nn.Embedding` would not train its row (`padding_idx`).
    batches = [random_batch(config, seed=step % 2, padding=False) for step in range(STEPS)]
    params = jax.tree.map(jnp.asarray, params_of(model))
    objective = PretrainingObjective(
        Pretraining(
            model=config,
            mask_token_id=4,
            nsp_weight=0.0,
            sop_weight=1.0,
            compute=ComputeConfig(layer_loop=Scanned()),
        )
    )
    optimizer, schedule = make_optimizer(TRAIN), learning_rate_schedule(TRAIN.schedule, STEPS)
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(objective, optimizer, schedule, seed=0))
    losses = []
    for batch in batches:
        state, metrics = step(state, {name: batch[name] for name in objective.batch_fields()})
        losses.append(float(metrics["loss"]))
    expected = _torch_losses(model, batches)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert losses[-1] < losses[1] - 0.1  # of the same batch


def _torch_losses(model: Any, batches: list[Any]) -> list[float]:
    model.train()
    named = list(model.named_parameters())
    plain = [p for n, p in named if n.endswith("bias") or "norm" in n.lower()]
    decayed = [p for _, p in named if all(p is not q for q in plain)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    losses = []
    for update, batch in enumerate(batches, start=1):
        up, down = update / WARMUP, (STEPS + 1 - update) / (STEPS - WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * (up if update <= WARMUP else down)
        labels = np.full(batch["input_ids"].shape, -100, np.int64)
        rows, entries = np.nonzero(batch["masked_lm_weights"])
        columns = batch["masked_lm_positions"][rows, entries]
        labels[rows, columns] = batch["masked_lm_ids"][rows, entries]
        optimizer.zero_grad()
        loss = model(
            **torch_fields(batch),
            labels=torch.from_numpy(labels),
            sentence_order_label=torch.from_numpy(batch["sentence_order_labels"]).long(),
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses
