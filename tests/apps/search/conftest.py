"""Makes a small model of each kind for the tests of search."""

import numpy as np
import pytest

from bert_jax.apps.search.encoder import TextEncoder, text_encoder_of
from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.export.retrieval_encoder import export_retrieval_encoder
from bert_jax.models.sentence_encoder.config import (
    Dense,
    MultiVectorEncoderConfig,
    Normalize,
    Prompt,
    QueryExpansion,
    SparseEncoderConfig,
)
from bert_jax.pretrained.embedding_model import MultiVectorModel, SparseModel
from bert_jax.pretrained.load import load_encoder, require_tokenizer

PROMPTS = (Prompt(name="query", text="the "), Prompt(name="document", text="a "))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the folder of a model of each kind."""
    root = tmp_path_factory.mktemp("models")
    model = small_model(root / "vocabulary", initializer_range=0.2)
    kernel = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    modules = (Dense(in_features=16, out_features=8, bias=False, activation=None), Normalize())
    multi_vector = MultiVectorEncoderConfig(
        modules=modules,
        prompts=PROMPTS,
        document_length=12,
        expansion=QueryExpansion(length=9, token_id=4),
        skip_token_ids=(require_tokenizer(model).token_to_id("."),),
    )
    head = {"dense": {"0": {"kernel": kernel}}}
    export(model, root / "dense")
    export_retrieval_encoder(
        MultiVectorModel(model=model, config=multi_vector, head_params=head), root / "multi_vector"
    )
    # Few weights, so that some documents share no token with a query.
    config = SparseEncoderConfig(prompts=PROMPTS, max_active_dims=4)
    export_retrieval_encoder(SparseModel(model=model, config=config), root / "sparse")
    return {kind: str(root / kind) for kind in ("dense", "sparse", "multi_vector")}


@pytest.fixture(scope="session")
def encoders(folders: dict[str, str]) -> dict[str, TextEncoder]:
    return {kind: text_encoder_of(load_encoder(folder)) for kind, folder in folders.items()}
