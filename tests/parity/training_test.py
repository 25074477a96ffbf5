"""Compares the losses of 20 training steps with PyTorch on the same weights and batches.

Without dropout. The reference is Hugging Face's BERT with torch.optim.AdamW; clipping, warmup and
linear decay are implemented here.
"""

import dataclasses
from pathlib import Path

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
from bert_jax.config.data import PretrainingData
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bert.huggingface import TABLES
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STEPS, WARMUP, PEAK, CLIP = 20, 5, 5e-4, 1.0
PHASE = Phase(steps=STEPS, seq_length=48, batch_size=8, max_predictions_per_seq=7)
ADAM = AdamW(b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.01)
TRAIN = TrainConfig(
    phases=(PHASE,),
    optimizer=ADAM,
    schedule=WarmupLinear(peak_learning_rate=PEAK, warmup_steps=WARMUP),
    max_grad_norm=CLIP,
)


def no_dropout(config: BertConfig) -> BertConfig:
    return dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def take_batches(corpus: PreparedCorpus, **settings) -> list[dict[str, np.ndarray]]:
    sizes = {"seq_length": 48, "batch_size": 8, "max_predictions_per_seq": 7, "seed": 0}
    config = PretrainingData(corpus=str(corpus.folder))
    with PretrainingLoader(corpus, config, **sizes, **settings) as loader:
        return [next(loader) for _ in range(STEPS)]


def train_jax(config: BertConfig, mask_id: int, flat, batches) -> tuple[list[float], list[float]]:
    """Returns the loss before each update, and the gradient's norm before clipping."""
    program = PretrainingObjective(Pretraining(model=config, mask_token_id=mask_id))
    optimizer, schedule = make_optimizer(TRAIN), learning_rate_schedule(TRAIN.schedule, STEPS)
    params = jax.tree.map(jnp.asarray, paths.unflatten(flat))
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(program, optimizer, schedule, seed=0))
    losses, norms = [], []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
        norms.append(float(metrics["grad_norm"]))
    return losses, norms


def train_torch(model, batches) -> tuple[list[float], list[float]]:
    model.train()
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    decayed = [p for p in model.parameters() if all(p is not q for q in plain)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        betas=(0.9, 0.999),
        eps=1e-6,
    )
    losses, norms = [], []
    for update, batch in enumerate(batches, start=1):
        up, down = update / WARMUP, (STEPS + 1 - update) / (STEPS - WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * (up if update <= WARMUP else down)
        optimizer.zero_grad()
        loss = model(**torch_fields(batch)).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def torch_fields(batch: dict[str, np.ndarray]) -> dict:
    """Converts a batch to PyTorch: labels at every position, -100 where nothing is predicted."""
    labels = np.full(batch["input_ids"].shape, -100, np.int64)
    for row, used in enumerate(batch["masked_lm_weights"] > 0):
        labels[row, batch["masked_lm_positions"][row, used]] = batch["masked_lm_ids"][row, used]
    fields = ("input_ids", "token_type_ids", "attention_mask")
    found = {name: torch.from_numpy(batch[name]).long() for name in fields}
    found["labels"] = torch.from_numpy(labels)
    found["next_sentence_label"] = torch.from_numpy(batch["next_sentence_labels"]).long()
    return found


def assert_same_training(config: BertConfig, mask_id: int, batches) -> list[float]:
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.positions.max_position_embeddings,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
        )
    )
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    losses, norms = train_jax(config, mask_id, TABLES.tied.from_external(state, "torch"), batches)
    torch_losses, torch_norms = train_torch(model, batches)
    np.testing.assert_allclose(losses, torch_losses, rtol=0, atol=1e-4)
    np.testing.assert_allclose(norms, torch_norms, rtol=1e-3)
    assert max(norms) > CLIP, "clipping took part"
    return losses


def test_losses_on_a_random_corpus(tmp_path):
    documents = random_documents(40, mean_tokens=12)
    corpus = PreparedCorpus(write_corpus(tmp_path, documents))
    batches = take_batches(corpus, vocab_arrays=random_vocab_arrays())
    config = no_dropout(BertConfig.from_size("tiny", vocab_size=1000, max_position_embeddings=48))
    assert_same_training(config, MASK, batches)


def test_losses_on_real_text(shared: Path, tmp_path):
    from bert_jax.config.text import TokenizerTrainingConfig
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.prepare import prepare
    from bert_jax.data.corpus.sources import TextFiles
    from bert_jax.text.cleaning import clean_text
    from bert_jax.text.files import read_text
    from bert_jax.text.learn import train_tokenizer

    files = str(shared / "text" / "inaugural" / "19[0-4]*.txt")
    texts = [clean_text(read_text(file)) for file in sorted(Path("/").glob(files[1:]))]
    # A softmax over a published vocabulary takes most of the time in unoptimized programs.
    learned, _ = train_tokenizer(texts, TokenizerTrainingConfig(vocab_size=2000))
    learned.save(tmp_path / "vocabulary")
    request = PrepareConfig(
        source=TextFiles({"train": (files,)}),
        output=str(tmp_path / "corpus"),
        tokenizer=str(tmp_path / "vocabulary"),
    )
    prepare(request, num_workers=1)
    corpus = PreparedCorpus(tmp_path / "corpus")
    vocabulary = corpus.tokenizer()
    config = no_dropout(BertConfig.from_size("tiny", vocab_size=vocabulary.vocab_size))
    losses = assert_same_training(config, vocabulary.mask_id, take_batches(corpus))
    assert losses[-1] < losses[0] - 0.2, "it learns, so the comparison is of training"
