"""Covers bert_jax/models/families.py and models/sharding.py: what adding a family takes.

A toy family is added to a copy of the code: one package, one line of the union and one row of the
table. All other code has to find it there.
"""

import os
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import bert_jax
from bert_jax.models.encoder import EncoderConfig, EncoderDecoderConfig
from bert_jax.models.families import ENCODER_DECODER_FAMILIES, FAMILIES

TOY = {
    "__init__": "",
    "config": """
from dataclasses import dataclass
from typing import ClassVar

from bert_jax.models.heads.config import DenseClassifier
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class ToyConfig(TransformerConfig):
    family: ClassVar = "Toy"
    pretraining_heads: ClassVar = ("masked_lm",)
    sequence_classifier: ClassVar = DenseClassifier()
    vocab_size: int = 30
    hidden_size: int = 8
    num_hidden_layers: int = 1
    num_attention_heads: int = 1
    intermediate_size: int = 8
    positions: LearnedPositions = LearnedPositions(max_position_embeddings=16)
    type_vocab_size: int = 1
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-5
""",
    "model": '''
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.linear import embedding, linear


class ToyEncoder(nnx.Module):
    """Adds the mean of a sequence's token embeddings to each of them, then a linear layer."""

    def __init__(self, config, compute, rngs):
        self.table = embedding(config.vocab_size, config, rngs)
        mix = linear(config.hidden_size, config.hidden_size, config, compute, rngs)
        self.layers = nnx.List([mix])

    def __call__(self, input_ids, token_type_ids=None, attention_mask=None, *, position_ids=None,
                 packing_ids=None, causal=False, dropout_key=None, output_hidden_states=False,
                 output_attentions=False):
        x = self.table.embedding[...][input_ids]
        mask = attention_mask[..., None].astype(jnp.float32)
        x = x + (x * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True)
        y = self.layers[0](x)
        return EncoderOutput(y, (x, y) if output_hidden_states else ())

    def token_embeddings(self):
        return self.table.embedding[...]


PARAMETER_AXES = [
    ("table/embedding", ("vocab", "embed")),
    ("layers/*/kernel", ("embed", "mlp")),
    ("layers/*/bias", ("mlp",)),
]
''',
    "huggingface": """
from bert_jax.models.huggingface import (
    HuggingFaceFormat, dense_names, norm_names, read_transformer_fields
)
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.toy.config import ToyConfig
from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_NAMES = NameTable("toy", [
    NameMapping("encoder/table/embedding", "toy.table.weight"),
    *dense_names("encoder/layers/*", "toy.layers.*"),
    *dense_names("masked_lm/transform", "lm.dense"),
    *norm_names("masked_lm/norm", "lm.norm"),
    NameMapping("masked_lm/bias", "lm.bias"),
    *dense_names("classifier/dense", "classifier.dense"),
    *dense_names("classifier/out_proj", "classifier.out_proj"),
], [], separator=".")


def _read(activation, read):
    positions = LearnedPositions(max_position_embeddings=read("max_position_embeddings", None))
    return ToyConfig(
        positions=positions, hidden_act=activation, **read_transformer_fields(read)
    )


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"toy": "Toy"},
    heads={"Model": (), "ForMaskedLM": ("masked_lm",)},
    read_config=_read,
    config_fields=lambda config: {},
    names=lambda config, head: _NAMES,
    canonical=lambda name: name,
)
""",
}

USE_TOY = """
import sys
from pathlib import Path

import jax
import numpy as np

import bert_jax
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.interop import huggingface
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.models.parameters import parts_in, validate_params
from bert_jax.models.toy.config import ToyConfig
from bert_jax.config.objectives import FineTuning, ObjectiveConfig, Pretraining
from bert_jax.objectives.make import make_objective
from bert_jax.config.train import MeshConfig
from bert_jax.parallel.sharding import make_mesh, parameter_shardings
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from bert_jax.apps.testing.batches import fine_tuning_batch, pretraining_batch
from bert_jax.config.train import Phase, TrainConfig, WarmupLinear
from bert_jax.train.flops import step_flops
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.optimizer import learning_rate_schedule
from bert_jax.train.step import init_state, make_train_step

folder = Path(sys.argv[1])
assert Path(bert_jax.__file__).is_relative_to(folder), bert_jax.__file__
phase = Phase(steps=3, seq_length=12, batch_size=4, max_predictions_per_seq=3)
train = TrainConfig(
    phases=(phase,), schedule=WarmupLinear(peak_learning_rate=1e-2, warmup_steps=1)
)
head = SequenceClassificationHead(labels=("a", "b"))
pretraining = Pretraining(model=ToyConfig(), mask_token_id=4, nsp_weight=0.0)
batches = [
    pretraining_batch(batch_size=4, seq_length=12, max_predictions_per_seq=3, vocab_size=30),
    fine_tuning_batch(head, batch_size=4, seq_length=12, vocab_size=30),
]
configs = [pretraining, FineTuning(model=ToyConfig(), head=head)]
for number, (config, batch) in enumerate(zip(configs, batches)):
    assert from_json(ObjectiveConfig, to_json(config)) == config
    objective = make_objective(config)
    mesh = make_mesh(MeshConfig())
    shardings = parameter_shardings(objective.abstract(), mesh)
    optimizer = make_optimizer(train)
    state = init_state(objective, optimizer, jax.random.key(0))
    state["params"] = jax.device_put(state["params"], shardings)
    step = jax.jit(make_train_step(
        objective, optimizer, learning_rate_schedule(train.schedule, 3)
    ))
    losses = []
    for _ in range(5):
        state, metrics = step(state, {name: batch[name] for name in objective.batch_fields()})
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0], losses
    flat = jax.tree.map(np.asarray, paths.flatten(state["params"]))
    task_head = None if number == 0 else head
    validate_params(flat, config.model, "toy", task_head)
    exported = folder / f"exported{number}"
    exported.mkdir()
    huggingface.write_config(exported, config.model, parts_in(flat), 0, task_head)
    huggingface.write_weights(exported, flat, config.model)
    model = load_encoder(exported)
    assert model.config == config.model and model.head == task_head
    for path, leaf in paths.flatten(model.params).items():
        assert np.array_equal(flat[path], leaf), path
assert ToyConfig().encoder_flops(12) > 0 and step_flops(pretraining, phase) > 0
print("all of it works")
"""


def test_toy_family_needs_one_package_and_a_row(tmp_path):
    package = tmp_path / "bert_jax"
    shutil.copytree(
        Path(bert_jax.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    toy = package / "models" / "toy"
    toy.mkdir()
    for name, content in TOY.items():
        (toy / f"{name}.py").write_text(content, "utf-8")
    config = "from bert_jax.models.toy.config import ToyConfig\n"
    line = "\nEncoderConfig = "
    _replace(package / "models" / "encoder.py", line, f"\n{config}{line}ToyConfig | ")
    row = "    ToyConfig: Family(toy.ToyEncoder, toy.PARAMETER_AXES, toy_format.HUGGING_FACE),\n"
    imports = (
        "from bert_jax.models.toy import huggingface as toy_format\n"
        "from bert_jax.models.toy import model as toy\n"
    )
    line = "FAMILIES: dict[type[TransformerConfig], Family] = {\n"
    families = package / "models" / "families.py"
    _replace(families, f"\n{line}", f"\n{imports}{config}\n{line}{row}")

    script = tmp_path / "use_toy.py"
    script.write_text(USE_TOY, "utf-8")
    finished = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stdout.strip() == "all of it works"


def _replace(file, old, new):
    source = file.read_text("utf-8")
    assert source.count(old) == 1
    file.write_text(source.replace(old, new), "utf-8")


def test_every_config_has_a_family():
    assert set(FAMILIES) == set(typing.get_args(EncoderConfig))
    assert set(ENCODER_DECODER_FAMILIES) == set(typing.get_args(EncoderDecoderConfig))
