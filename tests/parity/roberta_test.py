"""Compares RoBERTa with Hugging Face's PyTorch classes in float32: outputs, training, folders.

Every parameter is random, biases and norms too; batches are padded. Only real tokens are compared:
the hidden states of padding have no meaning.
families_test.py has what all families are compared in.
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
from bert_jax.models.model import forward
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.models.roberta.huggingface import TABLES
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import (
    check_folder,
    check_states,
    check_texts,
)
from tests.helpers.torch_training import (
    STEPS,
    long_fields,
    masked_lm_labels,
    train_config,
    train_jax,
    train_torch,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["roberta"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model

TOLERANCE = 1e-5
PAD = 1
FIELDS = ("input_ids", "attention_mask")


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


@pytest.mark.parametrize("name", ["ForMaskedLM", pytest.param("Model", marks=pytest.mark.slow)])
@pytest.mark.parametrize("model_type", ["xlm-roberta", "camembert"])
def test_folders_of_other_model_types_come_back_bit_identical(tmp_path, model_type, name):
    config = dataclasses.replace(SMALL, model_type=model_type)
    check_folder(
        torch_model(config, name),
        tmp_path,
        auto_class=getattr(transformers, f"AutoModel{name.removeprefix('Model')}"),
        config=config,
        parts=FAMILY.parts[name],
        seq_length=24,
        pad_token_id=PAD,
    )


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
    loaded = load_encoder(tmp_path)
    assert loaded.config == config and loaded.tokenizer is not None
    texts = ["the <mask> sat.", "a cat on the mat and the dog."]
    check_states(model, loaded, check_texts(loaded, tokenizer, texts))


@pytest.mark.slow  # training_test.py trains BERT, which has the same layers and optimizer
def test_twenty_training_steps():
    config = dataclasses.replace(
        FAMILY.medium,
        num_hidden_layers=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = torch_model(config, "ForMaskedLM", seed=3)
    batches = [masked_lm_batch(config, seed=seed) for seed in range(STEPS)]
    objective = PretrainingObjective(Pretraining(model=config, mask_token_id=4, nsp_weight=0.0))
    train = train_config(5e-4)
    losses = train_jax(objective, params_of(model), batches, train, "loss")
    expected, _ = train_torch(
        model,
        batches,
        train,
        lambda batch: (model(**long_fields(batch, *FIELDS), labels=masked_lm_labels(batch)).loss,),
    )
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert losses[-1] < losses[0]


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
