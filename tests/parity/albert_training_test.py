"""Compares 20 steps of ALBERT's pretraining with PyTorch: n-gram masks, sentence order, LAMB.

The model and its loss are Hugging Face's `AlbertForPreTraining` without dropout; LAMB (You et al.
2020, algorithm 2), clipping, warmup and linear decay are implemented here.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import (
    MASK,
    random_documents,
    random_vocab_arrays,
    write_corpus,
)
from bert_jax.config.data import NGramMasking, PretrainingData, SentenceOrderPairs
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import Lamb, Phase, TrainConfig, WarmupLinear
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.albert.huggingface import TABLES
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step
from tests.helpers.torch_parity import randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STEPS, WARMUP, PEAK, CLIP, DECAY, VOCAB = 20, 5, 2e-2, 1.0, 0.01, 300
MODEL = AlbertConfig(
    vocab_size=VOCAB,
    embedding_size=32,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    positions=LearnedPositions(max_position_embeddings=48),
)
TRAIN = TrainConfig(
    phases=(Phase(steps=STEPS, seq_length=48, batch_size=8, max_predictions_per_seq=7),),
    optimizer=Lamb(weight_decay=DECAY),
    schedule=WarmupLinear(peak_learning_rate=PEAK, warmup_steps=WARMUP),
    max_grad_norm=CLIP,
)


def take_batches(folder: Any) -> list[dict[str, np.ndarray]]:
    documents = random_documents(40, vocab_size=VOCAB, mean_tokens=12)
    corpus = PreparedCorpus(write_corpus(folder, documents, vocab_size=VOCAB))
    data = PretrainingData(
        corpus="", input_format=SentenceOrderPairs(), masking=NGramMasking(mlm_probability=0.15)
    )
    builder = BatchBuilder(
        corpus,
        random_vocab_arrays(VOCAB),
        data,
        seq_length=48,
        batch_size=8,
        max_predictions_per_seq=7,
        seed=0,
    )
    batches, position = [], 0
    for _ in range(2):  # each is repeated, because random text cannot be learned otherwise
        batch, position = builder.build_batch(position)
        batches.append(batch)
    return batches * (STEPS // 2)


def torch_model() -> Any:
    model = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(
            vocab_size=VOCAB,
            embedding_size=MODEL.embedding_size,
            hidden_size=MODEL.hidden_size,
            num_hidden_layers=MODEL.num_hidden_layers,
            num_attention_heads=MODEL.num_attention_heads,
            intermediate_size=MODEL.intermediate_size,
            max_position_embeddings=48,
            hidden_act="gelu_new",
            classifier_dropout_prob=0.0,
            attn_implementation="eager",
        )
    )
    return randomize_parameters(model, std=0.05)


def train_jax(model: Any, batches: list[dict[str, np.ndarray]]) -> list[float]:
    state_dict = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    flat = TABLES.tied.from_external(state_dict, "torch")
    params = jax.tree.map(jnp.asarray, paths.unflatten(flat))
    objective = PretrainingObjective(
        Pretraining(model=MODEL, mask_token_id=MASK, nsp_weight=0.0, sop_weight=1.0)
    )
    optimizer, schedule = make_optimizer(TRAIN), learning_rate_schedule(TRAIN.schedule, STEPS)
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(objective, optimizer, schedule, seed=0))
    losses = []
    for batch in batches:
        state, metrics = step(state, {name: batch[name] for name in objective.batch_fields()})
        losses.append(float(metrics["loss"]))
    return losses


def train_torch(model: Any, batches: list[dict[str, np.ndarray]]) -> list[float]:
    model.train()
    parameters = dict(model.named_parameters())
    moments = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in parameters.items()}
    losses = []
    for update, batch in enumerate(batches, start=1):
        up, down = update / WARMUP, (STEPS + 1 - update) / (STEPS - WARMUP)
        learning_rate = PEAK * (up if update <= WARMUP else down)
        model.zero_grad()
        loss = model(**torch_fields(batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP)
        with torch.no_grad():
            for name, parameter in parameters.items():
                first, second = moments[name]
                first.lerp_(parameter.grad, 1 - 0.9)
                second.lerp_(parameter.grad**2, 1 - 0.999)
                scaled = first / (1 - 0.9**update)
                scaled /= (second / (1 - 0.999**update)).sqrt() + 1e-6
                if not (name.endswith("bias") or "norm" in name.lower()):
                    scaled += DECAY * parameter
                    scaled *= parameter.norm() / scaled.norm()
                parameter -= learning_rate * scaled
        losses.append(loss.item())
    return losses


def torch_fields(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    labels = np.full(batch["input_ids"].shape, -100, np.int64)
    for row, used in enumerate(batch["masked_lm_weights"] > 0):
        labels[row, batch["masked_lm_positions"][row, used]] = batch["masked_lm_ids"][row, used]
    names = ("input_ids", "token_type_ids", "attention_mask")
    fields = {name: torch.from_numpy(batch[name]).long() for name in names}
    sentence_order_label = torch.from_numpy(batch["sentence_order_labels"]).long()
    return fields | {
        "labels": torch.from_numpy(labels),
        "sentence_order_label": sentence_order_label,
    }


def test_twenty_training_steps(tmp_path) -> None:
    batches, model = take_batches(tmp_path), torch_model()
    losses = train_jax(model, batches)
    np.testing.assert_allclose(losses, train_torch(model, batches), rtol=0, atol=1e-4)
    assert losses[-1] < losses[1] - 0.1
