"""Covers `bert-jax embed-train` with the losses splade and maxsim, from a file to a folder.

The sources are bert_jax/train/embedding_configs.py and bert_jax/objectives/retrieval_embeddings.py.
"""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_config, small_model
from bert_jax.config.embedding_losses import DistillKLDivLoss, MarginMSELoss, MaxSimRankingLoss
from bert_jax.config.sentence_embeddings import SentenceEmbedding, TextFile
from bert_jax.data.sentence_embeddings.text_groups import TextGroups, read_text_groups
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import RankingHead
from bert_jax.models.sentence_encoder.config import (
    MultiVectorEncoderConfig,
    SentenceEncoderConfig,
    SparseEncoderConfig,
)
from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.sparse_embedder import SparseEmbedder
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.metrics import read_metrics
from bert_jax.train.workloads.sentence_embeddings import teacher_targets
from tests.helpers.one_device import one_device_mesh

PLAIN = ("the", "a", "and", "by", "old")
TOPICS = ("sea", "man", "net", "sings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Returns a folder with a model, and queries with a positive and a negative text."""
    folder = tmp_path_factory.mktemp("retrieval")
    export(small_model(folder / "words", num_hidden_layers=1), folder / "model")
    draw = random.Random(0)
    with (folder / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("query", "positive", "negative", "score", "other_score"))
        for _ in range(96):
            topic, other = draw.sample(TOPICS, 2)
            texts = (" ".join((*draw.choices(PLAIN, k=4), word)) for word in (topic, topic, other))
            writer.writerow((*texts, 1.5, -0.5))
    return folder


def train(folder: Path, run: str, *flags: str, model: str = "model") -> int:
    with one_device_mesh():
        return main(
            [
                *("embed-train", "columns", "--model", f"{folder}/{model}"),
                *("--run", f"{folder}/{run}", "--train", f"{folder}/train.csv"),
                *("--texts", "query,positive,negative", "--batch-size", "8", "--epochs", "2"),
                *("--learning-rate", "5e-3", *flags),
                *("--set", "data.bucket_lengths=[]", "train.logging.log_every=1"),
            ]
        )


def test_splade_learns_and_becomes_sparse(folder, capsys):
    weights = "objective.loss.document_regularizer_weight=0.1"
    assert train(folder, "splade", "--loss", "splade", "--chunk-size", "4", "--set", weights) == 0
    records = read_metrics(folder / "splade/metrics.jsonl")
    losses = [each["loss"] for each in records if "loss" in each]
    dims = [each["document_active_dims"] for each in records if "document_active_dims" in each]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) and dims[-1] < dims[0]
    embed = SparseEmbedder(load_encoder(folder / "splade"))
    assert isinstance(embed.config, SparseEncoderConfig)
    vectors = embed(["the sea", "a man"])
    assert main(["export", f"{folder}/splade", "--output", f"{folder}/exported"]) == 0
    exported = SparseEmbedder(load_encoder(folder / "exported"))
    np.testing.assert_allclose(exported(["the sea", "a man"]).toarray(), vectors.toarray())
    capsys.readouterr()
    assert main(["embed", f"{folder}/splade", "the sea"]) == 0
    assert json.loads(capsys.readouterr().out)["embedding"] == embed.weights(vectors)[0]


@pytest.mark.parametrize(
    "loss", ["splade-distill-kl", pytest.param("maxsim-margin-mse", marks=pytest.mark.slow)]
)
def test_scores_of_a_teacher_are_learned(folder, loss):
    flags = ("--teacher-scores", "score,other_score", "--set", "train.phases.0.steps=12")
    assert train(folder, loss, "--loss", loss, "--epochs", "1", *flags) == 0
    losses = [each["loss"] for each in read_metrics(folder / f"{loss}/metrics.jsonl")]
    assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])


def test_scores_of_a_cross_encoder_are_its_outputs(folder):
    teacher = small_model(folder / "words", head=RankingHead())
    export(teacher, folder / "teacher")
    texts = [("the sea", "a net", "the old man"), ("a man", "a net", "a net")]
    groups = TextGroups(name="t", texts=texts)
    for loss in (MarginMSELoss(), MaxSimRankingLoss(distillation=DistillKLDivLoss())):
        config = SentenceEmbedding(
            model=small_config(),
            sentence_encoder=MultiVectorEncoderConfig()
            if isinstance(loss, MaxSimRankingLoss)
            else SentenceEncoderConfig(),
            loss=loss,
        )
        scores = teacher_targets(groups, config, str(folder / "teacher"))["label_logits"]
        for (query, *candidates), of_query in zip(texts, scores, strict=True):
            logits = [
                each["logit"] for each in Predictor(teacher)([(query, c) for c in candidates])
            ]
            np.testing.assert_allclose(of_query, logits, atol=1e-5)


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (
            ("s", "t"),
            [{"s": 1, "t": "NaN"}],
            r"line 1: the teacher's scores in 's', 't' are \[1, 'N",
        ),
        (("s",), [{"s": [1, 2, 3]}], r"\[1, 2, 3\]; expected 2 numbers, one for each text after"),
        (("s",), [{"s": [1, 2]}, {"s": 2}], r"line 2: .* are \[2\]; expected 2 numbers"),
        (("s",), [{"s": None}], r"are \[None\]; expected 2 numbers"),
        (("score",), [{"s": [1, 2]}], "there is no column 'score'"),
    ],
)
def test_errors_of_the_scores_of_a_teacher(tmp_path, columns, rows, message):
    path, texts = tmp_path / "scored.jsonl", {"q": "a", "p": "b", "n": "c"}
    path.write_text("".join(json.dumps({**texts, **row}) + "\n" for row in rows))
    with pytest.raises(UserError, match=message):
        read_text_groups(TextFile(path=str(path), texts=("q", "p", "n"), teacher_scores=columns))
    with pytest.raises(ConfigError, match="a column of scores for each text after the first"):
        TextFile(path=str(path), texts=("q", "p", "n"), teacher_scores=("a", "b", "c"))


def test_static_queries_have_learned_weights(folder):
    assert train(folder, "static", "--loss", "splade", "--static-queries") == 0
    embed = SparseEmbedder(load_encoder(folder / "static"))
    (weights,) = embed.weights(embed(["the sea"], role="query"))
    assert set(weights) == {"the", "sea"} and 1.0 not in weights.values()


def test_late_interaction_learns_and_a_run_is_continued(folder):
    assert train(folder, "colbert", "--loss", "maxsim") == 0
    losses = [each["loss"] for each in read_metrics(folder / "colbert/metrics.jsonl")]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.1
    model = load_encoder(folder / "colbert")
    embed = MultiVectorEmbedder(model)
    assert isinstance(embed.config, MultiVectorEncoderConfig)
    assert embed.config.expansion is not None and embed.config.expansion.length == 20
    assert model.tokenizer is not None
    period = model.tokenizer.token_to_id(".")
    assert embed.config.skip_token_ids == (period,)
    assert main(["export", f"{folder}/colbert", "--output", f"{folder}/colbert-folder"]) == 0
    exported = MultiVectorEmbedder(load_encoder(folder / "colbert-folder"))
    for role in ("query", "document"):
        (vectors,), (expected,) = (each(["the sea ."], role=role) for each in (exported, embed))
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
    # The projection is that of the run, so that a learning rate of 0 changes nothing.
    flags = ("--loss", "maxsim", "--epochs", "0.1", "--learning-rate", "1e-12")
    assert train(folder, "continued", *flags, model="colbert") == 0
    (continued,) = MultiVectorEmbedder(load_encoder(folder / "continued"))(["the sea"])
    np.testing.assert_allclose(continued, embed(["the sea"])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--texts", "query", "--loss", "splade"), "but SpladeLoss needs 2 or more"),
        (("--loss", "maxsim", "--pooling", "cls"), "does not train a model with one dense vector"),
        (("--loss", "maxsim", "--static-queries"), "--static-queries is a part of --loss splade"),
        (("--loss", "splade", "--matryoshka-dims", "8"), "--loss splade does not train; remove it"),
        (
            ("--loss", "maxsim", "--adaptive-layers"),
            "--adaptive-layers is for dense vectors, which",
        ),
    ],
)
def test_errors_of_the_command_line(folder, capsys, flags, message):
    assert train(folder, "errors", *flags) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (folder / "errors").exists()
