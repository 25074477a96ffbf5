"""Compares the losses of 20 training steps with PyTorch on the same weights and batches.

Without dropout. The reference is Hugging Face's BERT with torch.optim.AdamW; clipping, warmup and
linear decay are implemented here.
"""

import dataclasses
from pathlib import Path
from typing import Any

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
from bert_jax.config.train import AdamW
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bert.huggingface import TABLES
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from tests.helpers.torch_training import (
    CLIP,
    STEPS,
    long_fields,
    masked_lm_labels,
    train_config,
    train_jax,
    train_torch,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"seq_length": 48, "batch_size": 8, "max_predictions_per_seq": 7}
TRAIN = train_config(5e-4, AdamW(b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.01), **SIZES)


def no_dropout(config: BertConfig) -> BertConfig:
    return dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def take_batches(corpus: PreparedCorpus, vocab_arrays: VocabArrays) -> list[dict[str, np.ndarray]]:
    config = PretrainingData(corpus=str(corpus.folder))
    builder = BatchBuilder(corpus, vocab_arrays, config, seed=0, **SIZES)
    with PretrainingLoader(builder) as loader:
        return [next(loader) for _ in range(STEPS)]


def assert_same_training(config: BertConfig, mask_id: int, batches) -> np.ndarray:
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
    params = paths.unflatten(TABLES.tied.from_external(state, "torch"))
    objective = PretrainingObjective(Pretraining(model=config, mask_token_id=mask_id))
    found = train_jax(objective, params, batches, TRAIN, "loss", "grad_norm")
    losses, norms = found[:, 0], found[:, 1]

    def compute_losses(batch: dict[str, np.ndarray]) -> tuple[Any]:
        fields = long_fields(batch, "input_ids", "token_type_ids", "attention_mask")
        next_sentence_label = torch.from_numpy(batch["next_sentence_labels"]).long()
        labels = masked_lm_labels(batch)
        return (model(**fields, labels=labels, next_sentence_label=next_sentence_label).loss,)

    torch_losses, torch_norms = train_torch(model, batches, TRAIN, compute_losses)
    np.testing.assert_allclose(losses, torch_losses[:, 0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(norms, torch_norms, rtol=1e-3)
    assert max(norms) > CLIP, "clipping took part"
    return losses


def test_losses_on_a_random_corpus(tmp_path):
    documents = random_documents(40, mean_tokens=12)
    corpus = PreparedCorpus(write_corpus(tmp_path, documents))
    batches = take_batches(corpus, random_vocab_arrays())
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
    losses = assert_same_training(
        config, vocabulary.mask_id, take_batches(corpus, VocabArrays.from_tokenizer(vocabulary))
    )
    assert losses[-1] < losses[0] - 0.2, "it learns, so the comparison is of training"
