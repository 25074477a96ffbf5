"""Compares 20 steps of ALBERT's pretraining with PyTorch: n-gram masks, sentence order, LAMB.

The model and its loss are Hugging Face's `AlbertForPreTraining` without dropout; LAMB (You et al.
2020, algorithm 2), clipping, warmup and linear decay are implemented here.
"""

from typing import Any

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
from bert_jax.config.train import Lamb
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.albert.huggingface import TABLES
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from tests.helpers.families import FAMILIES
from tests.helpers.torch_training import (
    CLIP,
    STEPS,
    learning_rate,
    long_fields,
    masked_lm_labels,
    train_config,
    train_jax,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PEAK, DECAY, VOCAB = 2e-2, 0.01, 300
SIZES: dict[str, Any] = {"seq_length": 48, "batch_size": 8, "max_predictions_per_seq": 7}
MODEL = AlbertConfig(
    vocab_size=VOCAB,
    embedding_size=32,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    positions=LearnedPositions(max_position_embeddings=48),
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
        seed=0,
        **SIZES,
    )
    batches, position = [], 0
    for _ in range(2):  # each is repeated, because random text cannot be learned otherwise
        batch, position = builder.build_batch(position)
        batches.append(batch)
    return batches * (STEPS // 2)


def train_torch(model: Any, batches: list[dict[str, np.ndarray]]) -> list[float]:
    model.train()
    parameters = dict(model.named_parameters())
    moments = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in parameters.items()}
    losses = []
    for update, batch in enumerate(batches, start=1):
        rate = learning_rate(PEAK, update)
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
                parameter -= rate * scaled
        losses.append(loss.item())
    return losses


def torch_fields(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        **long_fields(batch, "input_ids", "token_type_ids", "attention_mask"),
        "labels": masked_lm_labels(batch),
        "sentence_order_label": torch.from_numpy(batch["sentence_order_labels"]).long(),
    }


def test_twenty_training_steps(tmp_path) -> None:
    batches = take_batches(tmp_path)
    model = FAMILIES["albert"].torch_model(MODEL, "ForPreTraining", classifier_dropout_prob=0.0)
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    params = paths.unflatten(TABLES.tied.from_external(state, "torch"))
    objective = PretrainingObjective(
        Pretraining(model=MODEL, mask_token_id=MASK, nsp_weight=0.0, sop_weight=1.0)
    )
    train = train_config(PEAK, Lamb(weight_decay=DECAY), **SIZES)
    losses = train_jax(objective, params, batches, train, "loss")[:, 0]
    np.testing.assert_allclose(losses, train_torch(model, batches), rtol=0, atol=1e-4)
    assert losses[-1] < losses[1] - 0.1
