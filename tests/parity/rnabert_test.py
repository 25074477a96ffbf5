"""Compares the hidden states of RNABERT, a published BERT with trained weights, with PyTorch."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.model import run_forward
from bert_jax.pretrained.load import load_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = {"A": 2, "U": 3, "T": 3, "G": 4, "C": 5}


@pytest.fixture
def folder(shared: Path, tmp_path: Path) -> Path:
    """Makes a Hugging Face folder of the published files, with the fields its config lacks."""
    here = shared / "checkpoints" / "rnabert"
    state = torch.load(here / "RNABERT.pth", weights_only=True, map_location="cpu")
    renamed = {
        name.replace("attention.selfattn", "attention.self"): tensor
        for name, tensor in state.items()
        if not name.startswith("cls.predictions_ss")  # an unused head
    }
    torch.save(renamed, tmp_path / "pytorch_model.bin")
    config = json.loads((here / "RNA_bert_config.json").read_text())
    write_config(tmp_path, config, tie_word_embeddings=False)
    return tmp_path


def write_config(folder: Path, config: dict, **fields) -> None:
    content = {**config, "hidden_size": 120, "model_type": "bert", **fields}
    (folder / "config.json").write_text(json.dumps(content))


def batch_of(fasta: Path) -> dict[str, np.ndarray]:
    """Returns the sequences of a FASTA file as ids, padded to more than the longest."""
    records = fasta.read_text().split(">")[1:]
    sequences = ["".join(record.split("\n")[1:]).strip() for record in records][:8]
    length = max(map(len, sequences)) + 5
    ids = np.zeros((len(sequences), length), np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = [IDS[base] for base in sequence]
    mask = (ids != 0).astype(np.int32)
    types = np.zeros_like(ids)
    types[1, 40:] = 1
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


def test_hidden_states_and_logits(shared, folder):
    model = load_encoder(folder)
    assert model.missing == () and model.tokenizer is None
    assert model.config.num_attention_heads == 12 and not model.config.tie_word_embeddings
    batch = batch_of(shared / "checkpoints" / "rnabert" / "RF00001.fa")
    found = run_forward(model.params, model.config, batch)

    config = transformers.BertConfig.from_pretrained(folder, attn_implementation="eager")
    reference = transformers.BertForPreTraining(config).eval()
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    state = {n.replace("gamma", "weight").replace("beta", "bias"): t for n, t in state.items()}
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    missing, unexpected = reference.load_state_dict(state, strict=False)
    assert not missing and not unexpected
    with torch.no_grad():
        out = reference(
            **{name: torch.from_numpy(array).long() for name, array in batch.items()},
            output_hidden_states=True,
        )
    real = batch["attention_mask"] > 0
    assert len(out.hidden_states) == 7 and 0.5 < real.mean() < 1
    for found_states, torch_states in zip(found["hidden_states"], out.hidden_states, strict=True):
        np.testing.assert_allclose(
            found_states[real], torch_states.numpy()[real], rtol=0, atol=1e-5
        )
    assert np.std(found["hidden_states"][-1][real]) > 0.1
    np.testing.assert_allclose(
        found["masked_lm"][real], out.prediction_logits.numpy()[real], rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(
        found["next_sentence"], out.seq_relationship_logits.numpy(), rtol=0, atol=1e-5
    )


def test_decoder_that_is_not_tied_is_noticed(shared, folder):
    config = json.loads((folder / "config.json").read_text())
    write_config(folder, config, tie_word_embeddings=True)
    with pytest.raises(UserError, match='set "tie_word_embeddings": false there'):
        load_encoder(folder)
