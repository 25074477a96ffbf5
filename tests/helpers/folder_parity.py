"""Compares a PyTorch model of Hugging Face with what this project makes of its folder."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch, pretraining_batch
from bert_jax.batch import CHOICE_FIELDS
from bert_jax.export.export import export
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.model import run_forward
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, load_encoder
from tests.helpers.torch_parity import HEADS, load_exported

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5


def config_fields(config: Any) -> dict[str, Any]:
    """Returns the fields that most configs of transformers have; written out, not exported."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.positions.max_position_embeddings,
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_act": "gelu_new" if config.hidden_act == "gelu_tanh" else "gelu",
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "attn_implementation": "eager",
    }


def check_head_folder(
    torch_model: Callable[..., Any],
    config: EncoderConfig,
    head_name: str,
    folder: Path,
    **options: Any,
) -> None:
    """Calls `check_folder` for a task head of `HEADS`, with its model and class of transformers.

    Args:
      torch_model: builds a model from a config, the end of its class name and further fields.
    """
    head, name, fields = HEADS[head_name]
    check_folder(
        torch_model(config, f"For{name}", **fields),
        folder,
        auto_class=getattr(transformers, f"AutoModelFor{name}"),
        config=config,
        head=head,
        **options,
    )


def check_head_outputs(
    torch_model: Callable[..., Any],
    config: EncoderConfig,
    head_name: str,
    folder: Path,
    **options: Any,
) -> None:
    """Compares the outputs of a model with a task head of `HEADS`, which is read from a folder."""
    head, name, fields = HEADS[head_name]
    model = torch_model(config, f"For{name}", **fields)
    model.save_pretrained(folder)
    loaded = load_encoder(folder)
    assert loaded.config == config and loaded.head == head
    check_outputs(model, loaded, **options)


def assert_same_tensors(model: Any, other: Any) -> None:
    """Checks that two PyTorch models have the same class, and tensors that are bit-identical."""
    state, again = model.state_dict(), other.state_dict()
    assert type(model) is type(other) and state.keys() == again.keys()
    assert all(torch.equal(state[key], again[key]) for key in state)


def check_folder(
    model: Any,
    folder: Path,
    *,
    auto_class: Any,
    config: EncoderConfig,
    head: TaskHead | None = None,
    parts: tuple[str, ...] = (),
    seq_length: int | None = None,
    pad_token_id: int = 0,
) -> LoadedModel:
    """Checks import, outputs, export and the import of the export; returns the imported model.

    - The folder that `save_pretrained` writes is read as `config` with `head`.
    - Hidden states and logits at real tokens are PyTorch's, up to 1e-5.
    - `auto_class` opens the export as the same class, bit-identical and with nothing left over.
    - The export is imported bit-identical.

    Args:
      auto_class: the class of transformers that opens the export.
      parts: what the weights have besides the encoder and the task head.
      seq_length: the length of the sequences that are compared; None for the longest of the model.
      pad_token_id: their padding.
    """
    model.save_pretrained(folder / "torch")
    loaded = load_encoder(folder / "torch")
    assert loaded.config == config and loaded.head == head
    if head is None:
        assert loaded.params.keys() == {"encoder", *parts}
    check_outputs(model, loaded, seq_length, pad_token_id)
    assert export(loaded, folder / "exported") == 0.0
    reopened = load_exported(auto_class, folder / "exported")
    assert_same_tensors(model, reopened)
    imported = load_encoder(folder / "exported")
    assert imported.config == config and imported.head == head
    expected, found = paths.flatten(loaded.params), paths.flatten(imported.params)
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
    return loaded


def check_outputs(
    model: Any, loaded: LoadedModel, seq_length: int | None = None, pad_token_id: int = 0
) -> None:
    """Compares hidden states and logits at real tokens; batches are padded."""
    config, head = loaded.config, loaded.head
    # The shape and the fields of the batch of `export`, which then compiles nothing new.
    seq_length = seq_length or config.max_length
    sizes: dict[str, Any] = {
        "batch_size": 2,
        "seq_length": seq_length,
        "vocab_size": config.vocab_size,
    }
    batch = (
        pretraining_batch(**sizes, max_predictions_per_seq=4)
        if head is None
        else fine_tuning_batch(head, **sizes)
    )
    prefix = "choice_" if CHOICE_FIELDS[0] in batch else ""
    names = ("input_ids", "token_type_ids", "attention_mask")
    batch = {f"{prefix}{name}": batch[f"{prefix}{name}"] for name in names}
    types = np.minimum(batch[f"{prefix}token_type_ids"], max(0, config.type_vocab_size - 1))
    batch[f"{prefix}token_type_ids"] = types
    is_real = batch[f"{prefix}attention_mask"].reshape(-1, seq_length) > 0
    assert 0.5 < is_real.mean() < 1
    ids, mask = batch[f"{prefix}input_ids"], batch[f"{prefix}attention_mask"]
    batch[f"{prefix}input_ids"] = np.where(mask > 0, ids, pad_token_id).astype(np.int32)
    expected = torch_forward(model, batch, prefix)
    found = run_forward(loaded.params, config, batch, head)
    states = expected.pop("hidden_states")
    assert len(states) == len(found["hidden_states"])
    for layer, (a, b) in enumerate(zip(found["hidden_states"], states, strict=True)):
        np.testing.assert_allclose(
            a[is_real], b[is_real], rtol=0, atol=TOLERANCE, err_msg=f"hidden states {layer}"
        )
    found_logits = next(
        (found[n] for n in ("task", "masked_lm", "replaced_token") if n in found), None
    )
    if found_logits is None:
        assert not expected
        return
    logits = np.stack(list(expected.values()), axis=-1) if len(expected) > 1 else expected["logits"]
    if prefix:
        logits = logits.reshape(-1, 1)
    on_tokens = logits.shape[:2] == is_real.shape
    a, b = (found_logits[is_real], logits[is_real]) if on_tokens else (found_logits, logits)
    assert b.std() > 0.001
    np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE, err_msg="logits")


def check_texts(loaded: LoadedModel, tokenizer: Any, texts: list[str]) -> dict[str, np.ndarray]:
    """Checks that two texts, and their pair, have the tokens of transformers; returns a batch."""
    assert loaded.tokenizer is not None
    expected = tokenizer(texts, return_tensors="np", padding=True)
    found = loaded.tokenize(texts)
    for name in ("input_ids", "attention_mask"):
        np.testing.assert_array_equal(found[name], expected[name])
    pair = loaded.tokenizer.build_inputs_with_special_tokens(*map(loaded.tokenizer.encode, texts))
    assert pair.tolist() == tokenizer(*texts)["input_ids"]
    return found


def check_states(model: Any, loaded: LoadedModel, batch: Any) -> None:
    """Compares the last hidden states of a batch of texts at real tokens."""
    fields = {
        name: torch.from_numpy(batch[name]).long() for name in ("input_ids", "attention_mask")
    }
    with torch.no_grad():
        expected = model(**fields).last_hidden_state.numpy()
    real = batch["attention_mask"] > 0
    found = run_forward(loaded.params, loaded.config, batch)["hidden_states"][-1]
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=TOLERANCE)


def check_exported_texts(model: Any, tokenizer: Any, folder: Path, texts: list[str]) -> None:
    """Checks that an exported model computes the same from what its tokenizer returns."""
    exported = transformers.AutoTokenizer.from_pretrained(folder)
    assert exported(*texts)["input_ids"] == tokenizer(*texts)["input_ids"]
    reopened = load_exported(transformers.AutoModel, folder).eval()
    with torch.no_grad():
        states = reopened(**exported(texts, return_tensors="pt", padding=True)).last_hidden_state
        original = model(**tokenizer(texts, return_tensors="pt", padding=True)).last_hidden_state
    assert torch.equal(states, original)


def torch_forward(model: Any, batch: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the hidden states, and the logits by PyTorch's names, as NumPy arrays."""
    accepted = inspect.signature(model.forward).parameters
    fields = {
        name: torch.from_numpy(batch[f"{prefix}{name}"]).long()
        for name in ("input_ids", "token_type_ids", "attention_mask")
        if name in accepted
    }
    with torch.no_grad():
        outputs = model(**fields, output_hidden_states=True)
    names = [n for n in ("logits", "start_logits", "end_logits") if n in outputs]
    return {
        "hidden_states": [state.numpy() for state in outputs.hidden_states],
        **{name: outputs[name].numpy() for name in names},
    }
