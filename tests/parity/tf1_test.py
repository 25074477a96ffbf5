"""Compares Google's TF1 checkpoint format with PyTorch, loaded by a mapping written here."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.models.model import run_forward
from bert_jax.pretrained.initial import load_model_or_tf1

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def torch_name(variable: str) -> str:
    """Returns the PyTorch name of one of Google's variables."""
    name = variable.replace("layer_", "layer.").replace("/", ".")
    for google, torch_suffix in [
        ("gamma", "weight"),
        ("beta", "bias"),
        ("kernel", "weight"),
        ("_embeddings", "_embeddings.weight"),
        ("output_weights", "weight"),
        ("output_bias", "bias"),
    ]:
        if name.endswith(google):
            return name.removesuffix(google) + torch_suffix
    return name


def load_by_hand(folder: Path):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    state = {}
    for variable in reader.get_variable_to_shape_map():
        if variable == "global_step" or variable.endswith(("adam_m", "adam_v")):
            continue
        value = reader.get_tensor(variable)
        value = value.T if variable.endswith("kernel") else value
        state[torch_name(variable)] = torch.from_numpy(np.ascontiguousarray(value))
    config = transformers.BertConfig.from_json_file(folder / "bert_config.json")
    config._attn_implementation = "eager"
    model = transformers.BertForPreTraining(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    model.tie_weights()
    return model


def test_hidden_states_and_logits(shared):
    folder = shared / "checkpoints" / "tf_format_tiny"
    model = load_model_or_tf1(folder)
    assert model.missing == () and model.tokenizer is not None
    text = model.tokenizer.encode("all work and no play makes jack a dull boy")
    assert model.tokenizer.unk_id not in text
    ids = np.zeros((3, 16), np.int32)
    ids[0, :12] = [model.tokenizer.cls_id, *text, model.tokenizer.sep_id]
    ids[1] = np.random.default_rng(0).integers(0, 15, 16)
    ids[2, :5] = [2, 9, 4, 11, 3]
    mask = (ids != 0).astype(np.int32)
    mask[1] = 1
    types = (np.arange(16) > np.array([[6], [3], [2]])).astype(np.int32)
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    found = run_forward(model.params, model.config, batch)
    with torch.no_grad():
        out = load_by_hand(folder)(
            **{name: torch.from_numpy(array).long() for name, array in batch.items()},
            output_hidden_states=True,
        )
    real = mask > 0
    for found_states, torch_states in zip(found["hidden_states"], out.hidden_states, strict=True):
        np.testing.assert_allclose(
            found_states[real], torch_states.numpy()[real], rtol=0, atol=1e-5
        )
    np.testing.assert_allclose(
        found["masked_lm"][real], out.prediction_logits.numpy()[real], rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(
        found["next_sentence"], out.seq_relationship_logits.numpy(), rtol=0, atol=1e-5
    )
    assert np.std(found["masked_lm"]) > 0.02
