"""Starts one server with tiny models for all tests of the server."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.served_models import serve_model
from bert_jax.apps.testing.models import small_model
from bert_jax.config.objectives import FineTuning
from bert_jax.interop.peft.adapter_config import PeftAdapter
from bert_jax.interop.peft.folder import write_adapter_folder
from bert_jax.models.adapters.config import LoRA
from bert_jax.models.heads.config import (
    MultiLabelHead,
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
)
from bert_jax.models.sentence_encoder.config import (
    Dense,
    Normalize,
    Prompt,
    SentenceEncoderConfig,
)
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel
from tests.helpers.server import RunningServer, running_server

CONFIG = ServerConfig(max_batch_tokens=40, max_queue_tokens=4000, max_inputs=100, warm_up="all")
HEADS: dict[str, TaskHead | None] = {
    "encoder": None,
    "reviews": SequenceClassificationHead(labels=("bad", "fair", "good")),
    "emotions": MultiLabelHead(labels=("joy", "fear", "hope"), thresholds=(0.2, 0.8, 0.5)),
    "relevance": RegressionHead(),
    "names": TokenClassificationHead(labels=("O", "B-PER", "I-PER")),
    "questions": QuestionAnsweringHead(),
}


SENTENCE_ENCODER = SentenceEncoderConfig(
    pooling=("cls", "mean"),
    include_prompt=False,
    modules=(Dense(in_features=32, out_features=6), Normalize()),
    max_seq_length=12,
    prompts=(Prompt(name="query", text="by the "), Prompt(name="text", text="")),
)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    """Returns an encoder, with the head of each kind of task, and as a sentence encoder."""
    folder = tmp_path_factory.mktemp("vocabulary")
    models = {
        name: small_model(folder, head=head, num_hidden_layers=1) for name, head in HEADS.items()
    }
    kernel = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    models["sentences"] = dataclasses.replace(
        models["encoder"],
        sentence_encoder=SENTENCE_ENCODER,
        sentence_head={"dense": {"0": {"kernel": kernel, "bias": kernel[0]}}},
    )
    return models


@pytest.fixture(scope="session")
def adapter_folders(
    models: dict[str, LoadedModel], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Returns two LoRA adapters of the encoder, as folders of peft."""
    base, folders = models["encoder"], {}
    for seed, rank in enumerate((2, 3)):
        head = SequenceClassificationHead(labels=(f"no{seed}", f"yes{seed}"))
        method = LoRA(rank=rank, alpha=2.0, targets=("query", "value"))
        objective = FineTuningObjective(FineTuning(model=base.config, head=head), method)
        rng = np.random.default_rng(seed)
        flat = {
            path: rng.normal(0, 0.3, leaf.shape).astype(np.float32)
            for path, leaf in paths.flatten(objective.abstract()).items()
            if not path.startswith("encoder/")
        }
        folder = tmp_path_factory.mktemp(f"adapter{seed}")
        adapter = PeftAdapter(
            method=method,
            adapter={p.removeprefix("adapter/"): v for p, v in flat.items() if "adapter/" in p},
            params={p: v for p, v in flat.items() if not p.startswith("adapter/")},
            head=head,
            base="encoder",
            fingerprint=paths.fingerprint(base.params["encoder"]),
        )
        write_adapter_folder(folder, adapter, base.config, "0.1.0")
        folders[f"adapter{seed}"] = str(folder)
    return folders


@pytest.fixture(scope="session")
def server(
    models: dict[str, LoadedModel], adapter_folders: dict[str, str]
) -> Iterator[RunningServer]:
    """Yields a server with all models, whose programs are compiled."""
    served = serve_model("encoder", models["encoder"], CONFIG, adapter_folders)
    for name, model in models.items():
        if name != "encoder":
            served += serve_model(name, model, CONFIG)
    with running_server(served, CONFIG) as running:
        yield running
