"""Covers bert_jax/interop/tf1.py: a shared sample of a checkpoint, and damaged ones."""

import shutil
from pathlib import Path

import pytest

from bert_jax.apps.testing.models import random_parameters
from bert_jax.errors import UserError
from bert_jax.interop import tf1
from bert_jax.pretrained.initial import load_model_or_tf1


@pytest.fixture
def folder(shared: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "google"
    shutil.copytree(shared / "checkpoints" / "tf_format_tiny", copy)
    copy.chmod(0o755)
    return copy


def test_folder_and_prefix_give_all_weights_without_moments(folder):
    model = load_model_or_tf1(folder)
    assert model.missing == ()
    assert (
        model.tokenizer is not None and model.tokenizer.vocab_size == model.config.vocab_size == 15
    )
    by_prefix = tf1.read_checkpoint(folder / "bert_model.ckpt")
    assert by_prefix.flat_params.keys() == random_parameters(model.config).keys()
    assert len(by_prefix.flat_params) == 46


def test_damaged_checkpoint_error_names_the_file(folder):
    data = folder / "bert_model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    data.chmod(0o644)
    data.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"bert_model\.ckpt: this TensorFlow checkpoint cannot be"):
        load_model_or_tf1(folder)
    data.write_bytes(b"\0\0\0\0" + whole[4:])
    with pytest.raises(UserError, match=r"bert_model\.ckpt: this TensorFlow checkpoint cannot be"):
        load_model_or_tf1(folder)
    data.unlink()
    with pytest.raises(UserError, match=r"bert_model\.ckpt: this TensorFlow checkpoint cannot be"):
        load_model_or_tf1(folder)


def test_folder_needs_exactly_one_checkpoint(folder, tmp_path):
    shutil.copy(folder / "bert_model.ckpt.index", folder / "other.ckpt.index")
    with pytest.raises(UserError, match=r"several checkpoints: bert_model\.ckpt, oth"):
        load_model_or_tf1(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="the folder has nothing; expected a run folder"):
        load_model_or_tf1(empty)
    with pytest.raises(UserError, match=r"bert_config\.json and \*\.ckpt\.index"):
        tf1.read_checkpoint(empty)
