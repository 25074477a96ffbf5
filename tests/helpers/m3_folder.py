"""Writes a small model in the layout of BGE-M3."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from bert_jax.apps.testing.models import small_model
from bert_jax.export.sentence_encoder import export_sentence_encoder
from bert_jax.models.sentence_encoder.config import Normalize, Prompt, SentenceEncoderConfig
from bert_jax.pretrained.embedding_model import SentenceModel

RNG = np.random.default_rng(0)
LINEAR = {
    "sparse_linear": {
        "weight": RNG.normal(size=(1, 16)).astype(np.float32),
        "bias": np.full(1, 5.5, np.float32),  # about half of the tokens have a weight
    },
    "colbert_linear": {
        "weight": RNG.normal(size=(8, 16)).astype(np.float32),
        "bias": RNG.normal(size=8).astype(np.float32),
    },
}
"""The linear layers of the heads, for hidden states of width 16."""


def write_m3_folder(root: Path) -> Path:
    """Returns a folder with all heads, and with a prompt that is not pooled."""
    config = SentenceEncoderConfig(
        pooling=("cls",),
        modules=(Normalize(),),
        prompts=(Prompt(name="query", text="the old "),),
        include_prompt=False,
    )
    model = small_model(root / "vocabulary", initializer_range=0.2)
    sentence = SentenceModel(model=model, config=config, is_trained=True)
    export_sentence_encoder(sentence, root / "model")
    for name, tensors in LINEAR.items():
        save_file(tensors, root / f"model/{name}.safetensors")
    return root / "model"
