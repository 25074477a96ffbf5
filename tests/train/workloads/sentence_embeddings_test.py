"""Covers sources/sentence_embeddings.py, sentence_targets.py, embed_train.py and the preset."""

import csv
import dataclasses
import functools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.plan.inputs import make_inputs
from bert_jax.apps.testing.models import WORDS, small_config, small_model
from bert_jax.config.embedding_losses import (
    AdaptiveLayerLoss,
    ContrastiveLoss,
    CoSENTLoss,
    DenoisingAutoEncoderLoss,
    EmbedDistillLoss,
    GISTEmbedLoss,
    MarginMSELoss,
    MSELoss,
    MultipleNegativesRankingLoss,
    SoftmaxLoss,
    SupervisedSimCSE,
    TripletLoss,
    UnsupervisedSimCSE,
)
from bert_jax.config.sentence_embeddings import SentenceEmbedding, SentenceEmbeddingData, TextFile
from bert_jax.data.sentence_embeddings.text_groups import TextGroups, read_text_groups
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.esm.config import EsmConfig
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.sentence_encoder.config import Dense, Normalize, SentenceEncoderConfig
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.runs.metrics import read_metrics
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.presets import sentence_embedding_experiment
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from bert_jax.train.workloads.sentence_embeddings import (
    SentenceEmbeddingWorkload,
    loss_targets,
    prepare_groups,
    teacher_targets,
)
from tests.helpers.one_device import one_device_mesh
from tests.helpers.same_parameters import assert_same_parameters

PLAIN = [word for word in WORDS if not word.startswith("##") and word not in ("sea", "man")]
PAIRS = TextGroups(
    name="pairs.csv",
    texts=[("a net", "the sea"), ("a man", "the net"), ("a net", "by the sea")],
    scores=np.array([0.0, 0.5, 1.0], np.float32),
    labels=["0", "1", "1"],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a model and pairs, which score 4 if both or neither text is about the sea."""
    folder = tmp_path_factory.mktemp("sentences")
    export(small_model(folder / "words", num_hidden_layers=1), folder / "model")
    draw = random.Random(0)
    for name, size in (("train", 96), ("dev", 40)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("first", "second", "score"))
            for _ in range(size):
                topics = draw.choice(("sea", "man")), draw.choice(("sea", "man"))
                texts = (" ".join((*draw.choices(PLAIN, k=4), topic)) for topic in topics)
                writer.writerow((*texts, 4 * (topics[0] == topics[1])))
    return folder


def train(folder: Path, run: str, *flags: str, settings: tuple[str, ...] = ()) -> int:
    arguments = ("--train", f"{folder}/train.csv", "--texts", "first,second", "--max-length", "8")
    with one_device_mesh():
        return main(
            [
                *("embed-train", "columns", "--model", f"{folder}/model"),
                *("--run", f"{folder}/{run}", *arguments, *flags),
                *("--set", "data.bucket_lengths=[]", "train.logging.log_every=1", *settings),
            ]
        )


def test_run_learns_scores_and_records_the_sentence_encoder(folder):
    flags = ("--score", "score", "--score-range", "0", "4", "--epochs", "6", "--batch-size", "16")
    dev = ("--dev", f"{folder}/dev.csv", "--dev-columns", "first,second,score")
    assert train(folder, "cosent", *flags, *dev, "--learning-rate", "5e-3") == 0
    records = read_metrics(folder / "cosent/metrics.jsonl")
    spearman = [each["spearman"] for each in records if "spearman" in each]
    final = json.loads((folder / "cosent/evaluation.json").read_text())["dev"]
    assert final["spearman"] == pytest.approx(max(spearman))
    assert final["spearman"] > spearman[0] + 0.1
    objective = json.loads((folder / "cosent/config.json").read_text())["config"]["objective"]
    assert objective["type"] == "SentenceEmbedding"
    assert objective["sentence_encoder"]["max_seq_length"] == 8
    params, _, step = restore_params(folder / "cosent/checkpoints", None)
    assert set(params) == {"encoder"}
    assert step in {each["step"] for each in records if "spearman" in each}


@pytest.mark.slow
def test_a_resumed_run_is_bit_exact(folder):
    flags = ("--epochs", "2", "--batch-size", "16", "--loss", "multiple-negatives-ranking")
    settings = ("train.checkpoints.save_every=4", "train.checkpoints.keep_last=3")
    assert train(folder, "whole", *flags, settings=settings) == 0
    shutil.copytree(folder / "whole", folder / "resumed")
    checkpoints = folder / "resumed/checkpoints"
    first, *later = sorted(int(each.name) for each in checkpoints.iterdir() if each.name.isdigit())
    for step in later:
        shutil.rmtree(checkpoints / str(step))
    assert train(folder, "resumed", *flags, settings=settings) == 0
    assert_same_parameters(folder / "whole", folder / "resumed", later[-1])
    start, expected = (
        paths.flatten(restore_params(folder / "whole/checkpoints", step)[0])
        for step in (first, later[-1])
    )
    assert not all(np.array_equal(expected[path], start[path]) for path in expected)


# tests/objectives has the chunks, tests/parity the loss, and the test of margins below the vectors
# of a teacher.
@pytest.mark.slow
def test_teacher_vectors_are_learned_in_chunks(folder):
    flags = ("--loss", "mse", "--teacher", f"{folder}/model", "--pooling", "mean")
    settings = ("--epochs", "0.5", "--batch-size", "16", "--learning-rate", "1e-9")
    assert train(folder, "teacher", *flags, *settings, "--chunk-size", "8") == 0
    losses = [each["loss"] for each in read_metrics(folder / "teacher/metrics.jsonl")]
    assert max(losses) < 0.3  # the student starts as the teacher, and differs by dropout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--score", "similarity"), "there is no column 'similarity'"),
        (("--score", "score"), "expected a number from 0 to 1; set the range with --score-range"),
        (
            ("--texts", "first", "--loss", "cosent"),
            "each example has 1 texts, but CoSENTLoss needs",
        ),
        (("--loss", "softmax"), "has no labels, which SoftmaxLoss needs; name the column with"),
        (("--loss", "triplet"), "TripletLoss needs 3: anchor, positive, negative"),
        (("--batch-size", "97"), "of the 96 training examples no 97 with different texts"),
        (("--batch-size", "16", "--chunk-size", "5"), "does not divide the batch_size 16"),
        (("--loss", "mse"), "--loss mse needs --teacher"),
        (("--loss", "gist"), "--loss gist needs --teacher"),
        (("--loss", "angle"), "has no scores, which AnglELoss needs; name the column with"),
        (("--loss", "margin-mse", "--teacher", "x"), "needs 3 or more: query, positive, negatives"),
        (
            ("--loss", "distill-kl", "--texts", "first,second,score"),
            "no scores of a teacher, which",
        ),
        (("--teacher-scores", "score"), "which MultipleNegativesRankingLoss does not use"),
        (("--teacher", "x"), "--loss multiple-negatives-ranking does not use --teacher"),
        (("--eval-every", "5"), "--eval-every needs --dev, which is not given"),
        (("--splits", "dev"), "columns does not use --splits"),
        (("--matryoshka-dims", "32"), "vectors have 16 components"),
        (("--loss", "tsdae", "--adaptive-layers"), "--adaptive-layers sums losses that compare"),
        (
            ("--loss", "tsdae", "--texts", "first", "--chunk-size", "8"),
            "compares no examples; expected null",
        ),
    ],
)
def test_errors_of_the_command_line(folder, capsys, flags, message):
    assert train(folder, "errors", *flags) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (folder / "errors").exists()


COSINE = ("--loss", "cosine-similarity", "--score", "score", "--score-range", "0", "4")


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        (("--loss", "multiple-negatives-ranking"), None),
        (("--loss", "multiple-negatives-ranking", "--chunk-size", "8"), None),
        (COSINE, None),
        (COSINE, "train.phases.0.gradient_accumulation_steps=2"),
    ],
)
def test_packed_texts_train_the_model_of_padded_ones(folder, tmp_path, monkeypatch, flags, setting):
    """Without dropout, whose random numbers are others."""
    draw = random.Random(1)
    texts = [" ".join(draw.choices(PLAIN, k=draw.choice((1, 3, 16)))) for _ in range(192)]
    lines = [f"{texts[n]},{texts[n + 96]},{4 * (n % 2)}" for n in range(96)]
    (tmp_path / "train.csv").write_text("\n".join(("first,second,score", *lines)))
    flags = (*flags, "--train", f"{tmp_path}/train.csv", "--max-length", "20", "--batch-size", "16")
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    settings = [f"objective.model.{name}=0" for name in rates] + ([setting] if setting else [])
    losses, padding = {}, {}
    for name, packs in (("packed", True), ("padded", False)):
        if not packs:
            workload = SentenceEmbeddingWorkload
            monkeypatch.setattr(workload, "_count_packed_rows", lambda *_: None)
            monkeypatch.setattr(workload, "batch_fields", lambda _, each: each.batch_fields())
        run = f"{name}{len(flags)}{len(settings)}"
        assert train(folder, run, *flags, settings=tuple(settings)) == 0
        records = read_metrics(folder / run / "metrics.jsonl")
        losses[name] = [each["loss"] for each in records]
        padding[name] = np.array([each["padding_fraction"] for each in records])
    # The rows of a part are a multiple of eight devices, here as many as its texts.
    in_parts = "--chunk-size" in flags or setting
    assert (padding["packed"] < padding["padded"] - 0.1).all() or in_parts
    assert len(set(losses["packed"])) >= 5
    np.testing.assert_allclose(losses["packed"], losses["padded"], rtol=2e-5)


def test_first_texts_that_are_too_long_are_refused(folder, capsys):
    assert train(folder, "long", "--set", "objective.first_text_length=2") == 2
    message = "objective.first_text_length is 2, but the longest first text of "
    assert message in capsys.readouterr().err


def test_processes_are_joined_before_anything_is_read(folder, capsys, monkeypatch):
    def initialize(config):
        raise UserError("joining processes")

    monkeypatch.setattr("bert_jax.parallel.processes.initialize", initialize)
    command = ["embed-train", "nli", "--snli-dir", "missing", "--model", "missing"]
    assert main([*command, "--run", f"{folder}/errors"]) == 1
    assert "joining processes" in capsys.readouterr().err


def test_nli_reads_all_files_and_refuses_labels(folder, capsys):
    (folder / "MNLI").mkdir()
    record = {"sentence1": "a net", "sentence2": "the sea", "gold_label": "entailment"}
    other = {**record, "gold_label": "contradiction"}
    lines = "".join(f"{json.dumps(each)}\n" for each in (record, other))
    (folder / "snli_1.0_train.jsonl").write_text(lines)
    nli = ["embed-train", "nli", "--snli-dir", str(folder), "--glue-dir", str(folder)]
    nli += ["--model", f"{folder}/model", "--run", f"{folder}/errors"]
    assert main([*nli, "--dev", "stsb"]) == 1
    assert "has no file of mnli" in capsys.readouterr().err
    assert main([*nli, "--label", "x"]) == 2
    assert "nli does not use --label" in capsys.readouterr().err


def test_simcse_needs_dropout(folder):
    texts = TextFile(path=f"{folder}/train.csv", texts=("first",))
    experiment = sentence_embedding_experiment(texts, f"{folder}/model", UnsupervisedSimCSE())
    objective, data = experiment.objective, experiment.data
    assert isinstance(objective, SentenceEmbedding) and isinstance(data, SentenceEmbeddingData)
    model = dataclasses.replace(
        objective.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    # ESM has a flag with "dropout" in its name, which is not a rate.
    for without_dropout in (model, EsmConfig()):
        objective = dataclasses.replace(objective, model=without_dropout)
        with pytest.raises(ConfigError, match="UnsupervisedSimCSE needs dropout"):
            SentenceEmbeddingWorkload(experiment, data, objective)


def test_groups_take_the_form_that_the_loss_reads():
    views = prepare_groups(PAIRS, UnsupervisedSimCSE())
    texts = ["a net", "the sea", "a man", "the net", "by the sea"]
    assert views.texts == [(text, text) for text in texts]
    assert prepare_groups(PAIRS, MSELoss(teacher="t")).texts == [(text,) for text in texts]
    unscored = dataclasses.replace(PAIRS, scores=None)
    assert prepare_groups(unscored, MultipleNegativesRankingLoss()) is unscored
    with pytest.raises(UserError, match="scores, which MultipleNegativesRankingLoss does not use"):
        prepare_groups(PAIRS, MultipleNegativesRankingLoss())
    assert loss_targets(PAIRS, CoSENTLoss()) == {"label_values": [0.0, 0.5, 1.0]}
    assert loss_targets(PAIRS, ContrastiveLoss()) == {"labels": [0, 1, 1]}
    assert loss_targets(PAIRS, SoftmaxLoss(labels=("1", "0"))) == {"labels": [1, 0, 0]}
    with pytest.raises(UserError, match=r"example 1 has the label '0'; expected one of 1, 2"):
        loss_targets(PAIRS, SoftmaxLoss(labels=("1", "2")))
    four = TextGroups(name="four.csv", texts=[("a", "b", "c", "d")])
    for loss in (SupervisedSimCSE(), TripletLoss()):
        with pytest.raises(UserError, match="each example has 4 texts"):
            prepare_groups(four, loss)


def test_scores_are_the_dot_products_of_the_teacher(folder):
    from bert_jax.predict.embedder import Embedder

    teacher = str(folder / "model")
    triples = TextGroups(name="t", texts=[("a net", "the sea", "by the sea")])
    config = SentenceEmbedding(model=small_config(), loss=MarginMSELoss(teacher=teacher))
    query, positive, negative = Embedder(load_encoder(teacher))(triples.texts[0])
    (scores,) = teacher_targets(triples, config, teacher)["label_logits"]
    assert scores == pytest.approx([query @ positive, query @ negative], abs=1e-5)
    wide = SentenceEmbedding(model=small_config(hidden_size=32), loss=MSELoss(teacher=teacher))
    with pytest.raises(ConfigError, match=r"vectors of 16 components.*those of the model have 32"):
        teacher_targets(triples, wide, teacher)
    guided = SentenceEmbedding(model=small_config(), loss=GISTEmbedLoss(guide=teacher))
    (vectors,) = teacher_targets(triples, guided, teacher)["guide_vectors"]
    np.testing.assert_array_equal(vectors, [query, positive, negative])


def test_vectors_of_another_size_are_learned_with_a_layer_for_training(folder):
    layers = SentenceEncoderConfig(modules=(Dense(in_features=16, out_features=8),))
    texts = TextFile(path=f"{folder}/train.csv", texts=("first",))
    loss = EmbedDistillLoss(teacher=f"{folder}/model")
    make = functools.partial(
        sentence_embedding_experiment, texts, f"{folder}/model", loss, batch_size=16, max_length=8
    )
    assert getattr(make().objective, "loss", None) == loss  # the sizes are equal
    experiment = make(sentence_encoder=layers, epochs=2, learning_rate=5e-3)
    with one_device_mesh():
        assert run(experiment, folder / "projected") == 0
    losses = [each["loss"] for each in read_metrics(folder / "projected/metrics.jsonl")]
    assert losses[-1] < losses[0]
    params, _, _ = restore_params(folder / "projected/checkpoints", None)
    assert paths.flatten(params)["teacher_projection/kernel"].shape == (8, 16)
    assert load_encoder(folder / "projected").sentence_head["dense"]["0"]["kernel"].shape == (16, 8)


def test_a_loss_over_all_layers_gets_the_layer_to_the_size_of_the_teacher(folder):
    layers = SentenceEncoderConfig(modules=(Dense(in_features=16, out_features=8),))
    texts = TextFile(path=f"{folder}/train.csv", texts=("first",))
    loss = AdaptiveLayerLoss(loss=EmbedDistillLoss(teacher=f"{folder}/model"), kl_div_weight=2.0)
    experiment = sentence_embedding_experiment(
        texts,
        f"{folder}/model",
        loss,
        sentence_encoder=layers,
        batch_size=16,
        max_length=8,
        epochs=2,
        learning_rate=5e-3,
    )
    projected = dataclasses.replace(loss.loss, projection_size=16)
    assert getattr(experiment.objective, "loss", None) == dataclasses.replace(loss, loss=projected)
    with one_device_mesh():
        assert run(experiment, folder / "adaptive") == 0
    losses = [each["loss"] for each in read_metrics(folder / "adaptive/metrics.jsonl")]
    assert losses[-1] < losses[0]


def test_a_run_of_tsdae_makes_an_encoder_without_its_decoder(folder):
    flags = ("--texts", "first", "--loss", "tsdae", "--pooling", "cls", "--batch-size", "16")
    dev = ("--dev", f"{folder}/dev.csv", "--dev-columns", "first,second,score")
    dev = (*dev, "--score-range", "0", "4")
    assert train(folder, "tsdae", *flags, *dev, "--epochs", "8", "--learning-rate", "5e-3") == 0
    losses = [
        each["loss"] for each in read_metrics(folder / "tsdae/metrics.jsonl") if "loss" in each
    ]
    assert losses[-1] < losses[0]
    params, _, _ = restore_params(folder / "tsdae/checkpoints", None)
    assert paths.flatten(params)["reconstruction/0/value/kernel"].shape == (16, 16)
    loaded = load_encoder(folder / "tsdae")
    assert set(loaded.params) == {"encoder"}
    assert getattr(loaded.sentence_encoder, "pooling", None) == ("cls",)


def test_tsdae_needs_the_layers_of_bert():
    objective = SentenceEmbedding(model=ModernBertConfig(), loss=DenoisingAutoEncoderLoss())
    with pytest.raises(
        ConfigError, match=r"layers and positions of BERT, but the model is a Moder"
    ):
        make_objective(objective).abstract()


def test_errors_name_the_file_and_the_line(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("a,b\nx,y\n ,y\n")
    with pytest.raises(UserError, match=r"pairs.csv, line 3: the column 'a' is ' '; expected a te"):
        read_text_groups(TextFile(path=str(path), texts=("a", "b")))
    path.write_text("a,b\n")
    with pytest.raises(UserError, match="has no rows; expected at least one"):
        read_text_groups(TextFile(path=str(path), texts=("a", "b")))


def test_training_starts_from_the_dense_layers_of_a_sentence_encoder(folder):
    texts = TextFile(path=f"{folder}/train.csv", texts=("first", "second"))
    layers = SentenceEncoderConfig(modules=(Dense(in_features=16, out_features=8), Normalize()))
    make = functools.partial(sentence_embedding_experiment, batch_size=16, max_length=8)
    loss = MultipleNegativesRankingLoss()
    first = make(texts, f"{folder}/model", loss, sentence_encoder=layers, epochs=0.2)
    with one_device_mesh():
        assert run(first, folder / "dense") == 0
        second = make(texts, f"{folder}/dense", loss)
        setup = TrainSetup.from_experiment(second, sharding.make_mesh(second.mesh))
        params = initialize_or_load(setup)["params"]
    assert isinstance(second.objective, SentenceEmbedding)
    assert isinstance(second.objective.sentence_encoder, SentenceEncoderConfig)
    assert second.objective.sentence_encoder.modules == layers.modules
    third = sentence_embedding_experiment(texts, f"{folder}/dense", loss, pooling="cls")
    assert isinstance(third.objective, SentenceEmbedding)
    assert third.objective.sentence_encoder == dataclasses.replace(
        layers, pooling=("cls",), max_seq_length=8
    )
    with pytest.raises(UserError, match="SentenceEmbeddingData, which bert-jax plan does not supp"):
        make_inputs(second)
    trained = paths.flatten(restore_params(folder / "dense/checkpoints", None)[0])
    for path, values in paths.flatten(params).items():
        np.testing.assert_array_equal(values, trained[path])


@pytest.mark.slow
def test_parameters_of_the_classifier_are_trained_with_a_softmax_loss(folder):
    labels = ("--label", "score", "--epochs", "0.2", "--batch-size", "16")
    assert train(folder, "softmax", *labels) == 0
    params, _, _ = restore_params(folder / "softmax/checkpoints", None)
    assert paths.flatten(params)["softmax_classifier/kernel"].shape == (48, 2)
