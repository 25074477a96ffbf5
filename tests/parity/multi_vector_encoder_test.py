"""Compares multi-vector models with sentence-transformers' `MultiVectorEncoder`, both ways."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.models import SPECIAL_TOKENS, WORDS, word_tokenizer
from bert_jax.export.retrieval_encoder import export_retrieval_encoder
from bert_jax.models.sentence_encoder.config import TextRole
from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder
from bert_jax.pretrained.embedding_model import MultiVectorModel, load_embedding_model
from bert_jax.pretrained.load import load_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.base.modules")
multi_vector = pytest.importorskip("sentence_transformers.multi_vector_encoder.modules")

TEXTS = [
    "the old man mends a net by the sea",
    "",
    "a net . and the sea " * 12,  # more tokens than are read
    "sea",
    "the man sings .",
]
TOLERANCE = 1e-5
WORDS_AND_MARKERS = (*WORDS, "[unused0]", "[unused1]")
SIZES = {
    "vocab_size": len(SPECIAL_TOKENS) + len(WORDS_AND_MARKERS),
    "initializer_range": 0.3,
    "max_position_embeddings": 20,
}


def bert():
    return transformers.BertModel(
        transformers.BertConfig(
            **SIZES,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
        )
    )


def distilbert():
    return transformers.DistilBertModel(
        transformers.DistilBertConfig(**SIZES, dim=16, n_layers=2, n_heads=4, hidden_dim=32)
    )


def modernbert():
    return transformers.ModernBertModel(
        transformers.ModernBertConfig(
            **SIZES,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            pad_token_id=0,
            cls_token_id=2,
            sep_token_id=3,
            bos_token_id=2,
            eos_token_id=3,
        )
    )


def encoder_folder(make, folder: Path) -> Path:
    """Writes a model with random parameters, and the tokenizer of a few words."""
    torch.manual_seed(0)
    model = make()
    for parameter in model.parameters():  # biases and norms, too
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(str(folder))
    word_tokenizer(folder.parent / "vocabulary", WORDS_AND_MARKERS).save(folder)
    return folder


def dense(in_features: int, out_features: int):
    return modules.Dense(
        in_features,
        out_features,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )


def opened(folder: Path):
    return sentence_transformers.MultiVectorEncoder(str(folder), device="cpu")


def check_equal(folder: Path) -> MultiVectorEmbedder:
    """Compares vectors and scores of queries and documents, also of the folder that we write."""
    embed = MultiVectorEmbedder(load_encoder(folder))
    exported = folder.parent / "exported"
    loaded = load_embedding_model(folder)
    assert isinstance(loaded, MultiVectorModel)
    export_retrieval_encoder(loaded, exported)
    _check_vectors(opened(folder), embed)
    _check_vectors(opened(exported), MultiVectorEmbedder(load_encoder(exported)))
    return embed


def _check_vectors(reference, embed: MultiVectorEmbedder) -> None:
    expected_by_role: dict[TextRole, Any] = {
        "query": reference.encode_query(TEXTS),
        "document": reference.encode_document(TEXTS),
    }
    vectors_by_role = {role: embed(TEXTS, role=role) for role in expected_by_role}
    for role, expected in expected_by_role.items():
        for index, (vectors, reference_vectors) in enumerate(
            zip(vectors_by_role[role], expected, strict=True)
        ):
            np.testing.assert_allclose(
                vectors, reference_vectors.numpy(), atol=TOLERANCE, err_msg=f"{role} {index}"
            )
    scores = reference.similarity(expected_by_role["query"], expected_by_role["document"]).numpy()
    np.testing.assert_allclose(
        embed.scores(vectors_by_role["query"], vectors_by_role["document"]),
        scores,
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )


EXPANSIONS = {
    "none": None,
    "fixed": {"strategy": "fixed", "length": 10},
    "attended": {"strategy": "fixed", "length": 19, "attend": True, "token": "sea"},
    "min": {"strategy": "min", "length": 8},
}


@pytest.mark.parametrize(
    ("make", "name"),
    [(bert, "none"), (bert, "min"), (distilbert, "attended"), (modernbert, "fixed")],
)
def test_vectors_and_scores_are_those_of_sentence_transformers(make, name, tmp_path):
    expansion = EXPANSIONS[name]
    transformer = modules.Transformer(
        str(encoder_folder(make, tmp_path / "encoder")),
        max_seq_length=18,
        document_length=12,
        query_expansion=expansion,
    )
    parts = [
        transformer,
        dense(16, 8),
        multi_vector.MultiVectorMask(skiplist_words=["."]),
        modules.Normalize(module_input_name="token_embeddings"),
    ]
    model = sentence_transformers.MultiVectorEncoder(
        modules=parts,
        prompts={"query": "the man ", "document": "a "},
        similarity_fn_name="meanmaxsim" if expansion is None else "maxsim",
        device="cpu",
    )
    model.save_pretrained(str(tmp_path / "model"))
    embed = check_equal(tmp_path / "model")
    (document,) = embed.embed(["the man sings ."])
    assert embed.tokens(document) == ["[CLS]", "a", "the", "man", "sings", "[SEP]"]


def pylate_folder(base: Path) -> Path:
    """Writes the files that `pylate.models.ColBERT.save` writes, in their spelling."""
    folder = encoder_folder(bert, base / "pylate")
    settings = {
        "model_type": "ColBERT",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "query_length": 12,
        "document_length": 14,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        "do_query_expansion": True,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (folder / "1_Dense").mkdir()
    dense(16, 8).save(str(folder / "1_Dense"))
    config = json.loads((folder / "1_Dense" / "config.json").read_text())
    del config["module_input_name"], config["module_output_name"]
    (folder / "1_Dense" / "config.json").write_text(json.dumps(config))
    types = ("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense")
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": module_type}
        for index, (path, module_type) in enumerate(zip(("", "1_Dense"), types, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    # PyLate pads with the mask. It does not write our file with the tokenizer's fingerprint.
    (folder / "vocabulary.json").unlink()
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token": "[MASK]"}))
    return folder


def test_folder_of_pylate_is_read_as_sentence_transformers_reads_it(tmp_path):
    embed = check_equal(pylate_folder(tmp_path))
    (query,) = embed.embed(["the man sings ."], role="query")
    assert embed.tokens(query) == [
        *("[CLS]", "[unused0]", "the", "man", "sings", ".", "[SEP]"),
        *["[MASK]"] * 5,
    ]
    # It is written in the same spelling again.
    modules_file = tmp_path / "exported" / "modules.json"
    types = [module["type"] for module in json.loads(modules_file.read_text())]
    assert types == ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"]
