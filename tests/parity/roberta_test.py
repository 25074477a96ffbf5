"""Compares RoBERTa with Hugging Face's PyTorch classes in float32: outputs, training, folders.

Every parameter is random, biases and norms too; batches are padded. Only real tokens are compared:
the hidden states of padding have no meaning.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.export.export import export
from bert_jax.models.layers.config import GeluTanh, PaddingOffsetPositions
from bert_jax.models.model import forward, run_forward
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.models.roberta.huggingface import TABLES
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
PAD = 1
SMALL = RobertaConfig(
    vocab_size=103,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=70,
    positions=PaddingOffsetPositions(max_position_embeddings=42),
)
MEDIUM = RobertaConfig(
    vocab_size=300,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    positions=PaddingOffsetPositions(max_position_embeddings=66),
)
both_sizes = pytest.mark.parametrize(
    "config", [SMALL, pytest.param(MEDIUM, marks=pytest.mark.slow)], ids=["small", "medium"]
)


def torch_model(config: RobertaConfig, name: str, seed: int = 0, **fields: Any) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    prefix = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}[
        config.model_type
    ]
    hf_config = getattr(transformers, f"{prefix}Config")(
        **config_fields(config),
        type_vocab_size=config.type_vocab_size,
        **fields,
    )
    model = getattr(transformers, f"{prefix}{name}")(hf_config)
    return randomize_parameters(model, std=0.05, seed=seed)


def params_of(model: Any) -> dict[str, Any]:
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    # The bare encoder has no prefix in its names.
    state = {
        name if name.startswith(("roberta.", "lm_head.", "classifier.", "qa_out")) else
        f"roberta.{name}": tensor
        for name, tensor in state.items()
    }  # fmt: skip
    return paths.unflatten(TABLES.tied.from_external(state, "torch"))


def masked_lm_batch(config: RobertaConfig, seq_length: int = 24, **sizes: Any) -> Any:
    """A batch whose padding has RoBERTa's id 1, and in which no real token has that id."""
    batch = pretraining_batch(
        **{"batch_size": 4, **sizes},
        seq_length=seq_length,
        max_predictions_per_seq=4,
        vocab_size=config.vocab_size,
    )
    batch["input_ids"] = np.where(batch["attention_mask"] > 0, batch["input_ids"], PAD)
    batch["token_type_ids"] = np.zeros_like(batch["token_type_ids"])
    return batch


def torch_fields(batch: Any, *names: str) -> dict[str, Any]:
    return {name: torch.from_numpy(batch[name]).long() for name in names}


@both_sizes
def test_hidden_states_and_masked_lm_logits(config):
    model, batch = torch_model(config, "ForMaskedLM"), masked_lm_batch(config)
    with torch.no_grad():
        expected = model(
            **torch_fields(batch, "input_ids", "attention_mask"), output_hidden_states=True
        )
    found = run_forward(params_of(model), config, batch)
    real = batch["attention_mask"] > 0
    assert 0.5 < real.mean() < 1
    for layer, (a, b) in enumerate(
        zip(found["hidden_states"], expected.hidden_states, strict=True)
    ):
        np.testing.assert_allclose(a[real], b.numpy()[real], atol=TOLERANCE, err_msg=f"{layer}")
    logits = expected.logits.numpy()
    assert logits.std() > 0.05
    np.testing.assert_allclose(found["masked_lm"][real], logits[real], atol=TOLERANCE)


def test_pooler_and_the_longest_sequence():
    model = torch_model(SMALL, "Model")
    batch = masked_lm_batch(SMALL, seq_length=40, padding=False)
    with torch.no_grad():
        expected = model(**torch_fields(batch, "input_ids", "attention_mask"))
    found = run_forward(params_of(model), SMALL, batch)
    np.testing.assert_allclose(found["pooled"], expected.pooler_output.numpy(), atol=TOLERANCE)


def test_masked_lm_head_has_erf_gelu_whatever_the_activation():
    config = dataclasses.replace(SMALL, hidden_act=GeluTanh())
    model, batch = torch_model(config, "ForMaskedLM"), masked_lm_batch(config)
    with torch.no_grad():
        expected = model(**torch_fields(batch, "input_ids", "attention_mask")).logits.numpy()
    found = run_forward(params_of(model), config, batch)["masked_lm"]
    real = batch["attention_mask"] > 0
    np.testing.assert_allclose(found[real], expected[real], atol=TOLERANCE)


def test_left_padding_has_the_positions_of_hugging_face():
    model, batch = torch_model(SMALL, "ForMaskedLM"), masked_lm_batch(SMALL)
    batch = {name: field[:, ::-1].copy() for name, field in batch.items() if field.ndim == 2}
    with torch.no_grad():
        expected = model(**torch_fields(batch, "input_ids", "attention_mask")).logits.numpy()
    found = run_forward(params_of(model), SMALL, batch)["masked_lm"]
    real = batch["attention_mask"] > 0
    np.testing.assert_allclose(found[real], expected[real], atol=TOLERANCE)


def test_packed_examples_are_computed_as_if_alone():
    params = params_of(torch_model(SMALL, "ForMaskedLM"))
    ids = np.random.default_rng(0).integers(5, 103, (1, 20)).astype(np.int32)
    first, second = ids[:, :12], ids[:, 12:]
    counts = [np.arange(12), np.arange(8)]
    packed = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": np.ones_like(ids),
        "position_ids": np.concatenate(counts)[None].astype(np.int32),
        "packing_ids": np.repeat([1, 2], [12, 8])[None].astype(np.int32),
    }
    together = run_forward(params, SMALL, packed)["masked_lm"][0]
    alone = [
        run_forward(
            params,
            SMALL,
            {
                "input_ids": part,
                "token_type_ids": np.zeros_like(part),
                "attention_mask": np.ones_like(part),
            },
        )["masked_lm"][0]
        for part in (first, second)
    ]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-6)


@each_head_of_family
def test_task_heads_and_their_folders(tmp_path, head_name):
    check_head_folder(torch_model, SMALL, head_name, tmp_path, pad_token_id=PAD)


@each_head_of_second_size
def test_task_heads_of_another_size(tmp_path, head_name):
    check_head_outputs(torch_model, MEDIUM, head_name, tmp_path, pad_token_id=PAD)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("roberta", "Model"),
        *((model_type, "ForMaskedLM") for model_type in ("roberta", "xlm-roberta", "camembert")),
        *(
            pytest.param(model_type, "Model", marks=pytest.mark.slow)
            for model_type in ("xlm-roberta", "camembert")
        ),
    ],
)
def test_pretrained_folders_come_back_bit_identical(tmp_path, model_type, name):
    config = dataclasses.replace(SMALL, model_type=model_type)
    model = torch_model(config, name)
    model.save_pretrained(tmp_path / "torch")
    loaded = load_model(tmp_path / "torch")
    assert loaded.config == config
    assert loaded.missing == (() if name == "ForMaskedLM" else ("masked_lm",))
    export(loaded, tmp_path / "exported")
    auto = transformers.AutoModel if name == "Model" else transformers.AutoModelForMaskedLM
    reopened = load_exported(auto, tmp_path / "exported")
    assert_same_tensors(model, reopened)
    third = paths.flatten(load_model(tmp_path / "exported").params)
    for path, leaf in paths.flatten(loaded.params).items():
        np.testing.assert_array_equal(third[path], leaf)


def write_tokenizer(folder: Path, model_type: str) -> Any:
    """Writes and returns a small tokenizer of the class that `transformers` has for the model."""
    letters = "abcdefghijklmnopqrstuvwxyz."
    if model_type == "roberta":
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "Ġt", "<mask>"]
        vocab = {token: token_id for token_id, token in enumerate(tokens)}
        tokenizer = transformers.RobertaTokenizerFast(vocab=vocab, merges=[("Ġ", "t")])
    else:
        first, name = {
            "xlm-roberta": (["<s>", "<pad>", "</s>", "<unk>"], "XLMRobertaTokenizer"),
            "camembert": (
                ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
                "CamembertTokenizer",
            ),
        }[model_type]
        tokens = [*first, "▁", "▁the", "▁t", *letters, "<mask>"]
        tokenizer = getattr(transformers, name)(vocab=[(t, -len(t) / 10) for t in tokens])
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize(
    "model_type",
    # CamemBERT's tokenizer is XLM-R's with other special ids.
    ["roberta", "xlm-roberta", pytest.param("camembert", marks=pytest.mark.slow)],
)
def test_folders_with_tokenizer_open_and_encode_texts(tmp_path, model_type):
    """Covers the tokenizers that DistilRoBERTa (RoBERTa's), XLM-R and CamemBERT are saved with."""
    tokenizer = write_tokenizer(tmp_path, model_type)
    config = dataclasses.replace(SMALL, vocab_size=len(tokenizer), model_type=model_type)
    model = torch_model(config, "Model")
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == config and loaded.tokenizer is not None
    texts = ["the <mask> sat.", "a cat on the mat and the dog."]
    expected = tokenizer(texts, return_tensors="np", padding=True)
    found = loaded.tokenize(texts)
    for name in ("input_ids", "attention_mask"):
        np.testing.assert_array_equal(found[name], expected[name])
    pair = loaded.tokenizer.build_inputs_with_special_tokens(*map(loaded.tokenizer.encode, texts))
    assert pair.tolist() == tokenizer(*texts)["input_ids"]
    with torch.no_grad():
        states = model(**torch_fields(found, "input_ids", "attention_mask")).last_hidden_state
    real = found["attention_mask"] > 0
    hidden_states = run_forward(loaded.params, config, found)["hidden_states"][-1]
    np.testing.assert_allclose(hidden_states[real], states.numpy()[real], rtol=0, atol=TOLERANCE)


STEPS, WARMUP, PEAK, CLIP = 20, 5, 5e-4, 1.0
TRAIN = TrainConfig(
    phases=(Phase(steps=STEPS, seq_length=24, batch_size=4, max_predictions_per_seq=4),),
    optimizer=AdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01),
    schedule=WarmupLinear(peak_learning_rate=PEAK, warmup_steps=WARMUP),
    max_grad_norm=CLIP,
)


@pytest.mark.slow  # training_test.py trains BERT, which has the same layers and optimizer
def test_twenty_training_steps():
    config = dataclasses.replace(
        MEDIUM, num_hidden_layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = torch_model(config, "ForMaskedLM", seed=3)
    params = jax.tree.map(jnp.asarray, params_of(model))
    batches = [masked_lm_batch(config, seed=seed) for seed in range(STEPS)]
    objective = PretrainingObjective(Pretraining(model=config, mask_token_id=4, nsp_weight=0.0))
    optimizer, schedule = make_optimizer(TRAIN), learning_rate_schedule(TRAIN.schedule, STEPS)
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(objective, optimizer, schedule, seed=0))
    losses = []
    for batch in batches:
        fields = {name: batch[name] for name in objective.batch_fields()}
        state, metrics = step(state, fields)
        losses.append(float(metrics["loss"]))
    expected = _torch_losses(model, batches)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert losses[-1] < losses[0]


def _torch_losses(model: Any, batches: list[Any]) -> list[float]:
    model.train()
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "norm" in n.lower()]
    decayed = [p for p in model.parameters() if all(p is not q for q in plain)]
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
        for row, used in enumerate(batch["masked_lm_weights"] > 0):
            labels[row, batch["masked_lm_positions"][row, used]] = batch["masked_lm_ids"][row, used]
        optimizer.zero_grad()
        loss = model(
            **torch_fields(batch, "input_ids", "attention_mask"), labels=torch.from_numpy(labels)
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow  # fine_tuning_heads_test.py compares all gradients of BERT
def test_forward_is_differentiable_with_respect_to_all_used_parameters():
    params = params_of(torch_model(SMALL, "ForMaskedLM"))
    batch = masked_lm_batch(SMALL)

    @jax.jit
    @jax.grad
    def gradient(params):
        return jnp.sum(jnp.square(forward(params, SMALL, batch)["masked_lm"]))

    for path, leaf in paths.flatten(gradient(jax.tree.map(jnp.asarray, params))).items():
        assert np.isfinite(leaf).all() and np.any(leaf), path
