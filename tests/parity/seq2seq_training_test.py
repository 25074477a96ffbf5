"""Compares the losses of 20 updates of T5 and BART with PyTorch, without dropout.

Both sides train on the same batches of span corruption and of BART's noise, T5 with Adafactor and
BART with AdamW. Covers bert_jax/objectives/seq2seq.py and Adafactor in bert_jax/train/optimizer.py.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import random_documents, random_vocab_arrays, write_corpus
from bert_jax.config.data import (
    BartDenoising,
    ConcatenatedDocuments,
    PretrainingData,
    SingleSegment,
    SpanCorruption,
)
from bert_jax.config.objectives import Seq2Seq
from bert_jax.config.train import Adafactor, AdamW, InverseSquareRoot, Phase, TrainConfig
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.interop.seq2seq import read_seq2seq_folder
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.objectives.seq2seq import Seq2SeqObjective
from bert_jax.params import paths
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step
from tests.helpers.seq2seq_parity import BART_SMALL, T5_SMALL, torch_bart, torch_t5

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STEPS, WARMUP, RATE = 20, 4, 0.02
SENTINELS = np.arange(104, 84, -1, dtype=np.int32)


def _batches(folder: Path, model: EncoderDecoderConfig, data: PretrainingData) -> list[Any]:
    """Makes batches of real and of padded rows, with ids below 105."""
    vocab_arrays = dataclasses.replace(
        random_vocab_arrays(85),
        sentinel_ids=SENTINELS,
        pad_id=model.pad_token_id,
        sep_id=model.eos_token_id,
    )
    corpus = write_corpus(folder, random_documents(20, vocab_size=85), vocab_size=105)
    sizes: dict[str, Any] = {
        "seq_length": 24,
        "target_length": 24,
        "batch_size": 4,
        "max_predictions_per_seq": 0,
    }
    builder = BatchBuilder(PreparedCorpus(corpus), vocab_arrays, data, seed=0, **sizes)
    with PretrainingLoader(builder) as loader:
        return [next(loader) for _ in range(STEPS)]


def _train_jax(folder: Path, config: EncoderDecoderConfig, optimizer: Any, batches: Any) -> Any:
    imported = read_seq2seq_folder(folder)
    params = jax.tree.map(jnp.asarray, paths.unflatten(imported.flat_params))
    train = TrainConfig(
        phases=(Phase(steps=STEPS, seq_length=24, target_length=24, batch_size=4),),
        optimizer=optimizer,
        schedule=InverseSquareRoot(scale=RATE, warmup_steps=WARMUP),
        max_grad_norm=None,
    )
    tx, schedule = make_optimizer(train), learning_rate_schedule(train.schedule, STEPS)
    objective = Seq2SeqObjective(Seq2Seq(model=config))
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(tx.init)(params)}
    step = jax.jit(make_train_step(objective, tx, schedule))
    losses = []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


def _train_torch(model: Any, optimizer: Any, batches: Any) -> list[float]:
    losses = []
    for update, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = RATE / max(update, WARMUP) ** 0.5
        labels = np.where(batch["decoder_target_weights"] > 0, batch["decoder_target_ids"], -100)
        fields = {name: batch[name] for name in ("input_ids", "attention_mask")}
        optimizer.zero_grad()
        inputs = {name: torch.from_numpy(x).long() for name, x in fields.items()}
        loss = model(**inputs, labels=torch.from_numpy(labels).long()).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_t5_trains_as_in_pytorch(tmp_path: Path) -> None:
    # Two layers, because the second has the relative biases of the first.
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    config = dataclasses.replace(T5_SMALL, vocab_size=105, dropout_rate=0.0, **sizes)
    data = PretrainingData(
        corpus="", input_format=ConcatenatedDocuments(), masking=SpanCorruption()
    )
    batches = _batches(tmp_path / "corpus", config, data)
    model = torch_t5(config)
    model.save_pretrained(tmp_path / "torch")
    losses = _train_jax(tmp_path / "torch", config, Adafactor(min_dim_size_to_factor=1), batches)
    # transformers divides by the root of the factored moments as optax does, and factors all sizes.
    optimizer = transformers.optimization.Adafactor(
        model.parameters(), lr=RATE, relative_step=False, scale_parameter=True, warmup_init=False
    )
    torch_losses = _train_torch(model, optimizer, batches)
    np.testing.assert_allclose(losses, torch_losses, rtol=0, atol=1e-4)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.slow  # T5 trains by the same code, and bart_test.py compares the loss
def test_bart_trains_as_in_pytorch(tmp_path: Path) -> None:
    config = dataclasses.replace(
        BART_SMALL,
        vocab_size=105,
        max_position_embeddings=24,
        dropout_rate=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    )
    data = PretrainingData(corpus="", input_format=SingleSegment(), masking=BartDenoising())
    batches = _batches(tmp_path / "corpus", config, data)
    assert any((batch["attention_mask"] == 0).any() for batch in batches)
    model = torch_bart(config)
    model.save_pretrained(tmp_path / "torch")
    adam = AdamW(weight_decay=0.0)
    losses = _train_jax(tmp_path / "torch", config, adam, batches)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0
    )
    torch_losses = _train_torch(model, optimizer, batches)
    np.testing.assert_allclose(losses, torch_losses, rtol=0, atol=1e-4)
    assert losses[-1] < losses[0] - 0.1
