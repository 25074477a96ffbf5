"""Provides a slice on this machine, and data for it to train on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.apps.testing.text_corpus import prepare_corpus
from tests.helpers.tpu.fake_pod import FakePod
from tests.helpers.tpu.metadata_server import MetadataServer, serving

RECIPE = """
from bert_jax.config.experiment import Experiment
from bert_jax.apps.testing.experiments import tiny_experiment
from bert_jax.config.train import Phase


def get_config(*, corpus: str, steps: int = 6, every: int = 3) -> Experiment:
    phase = Phase(steps=steps, seq_length=32, batch_size=16, max_predictions_per_seq=5)
    return tiny_experiment("pod", corpus, (phase,), save_every=every)
"""


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    with serving() as server:
        yield server


@pytest.fixture
def make_pod(tmp_path, metadata) -> Iterator[Callable[[int], FakePod]]:
    made: list[FakePod] = []

    def make(hosts: int) -> FakePod:
        made.append(FakePod(tmp_path / f"cloud-{len(made)}", metadata, hosts))
        return made[-1]

    yield make
    for pod in made:
        pod.close()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Provides a data folder with a recipe and a prepared corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    prepare_corpus(tmp_path_factory.mktemp("text") / "x").rename(folder / "train")
    (folder / "recipe.py").write_text(RECIPE)
    return folder
