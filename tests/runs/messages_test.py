"""Tests bert_jax/runs/messages.py: what a run logs about its model, its phases and its results."""

import json
import logging
from pathlib import Path

import jax

from bert_jax.models.bert.config import BertConfig
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.runs import messages


def test_model_and_phase_are_described(caplog):
    caplog.set_level(logging.INFO)
    shapes = {"a": jax.ShapeDtypeStruct((1000, 128), "float32"), "b": {"c": jax.numpy.zeros(7)}}
    messages.log_model(
        BertConfig(vocab_size=100, num_hidden_layers=2, hidden_size=128, num_attention_heads=2),
        shapes,
        shapes,
    )
    sizes = {"seq_length": 64, "num_steps": 50, "batch_size": 16, "examples_per_epoch": 1600}
    sizes["tokens_per_batch"] = 1024
    messages.log_phase(**sizes, is_packed=False)
    messages.log_phase(**sizes, is_packed=True)
    model, phase, packed_phase = caplog.messages
    assert model.startswith("model: BERT, 2 layers of width 128, 128,007 parameters; devices: 8 x ")
    assert phase == (
        "length-64: 50 updates of 16 examples, at most 51,200 tokens with padding, 0.5 epochs; "
        "compiling the train step"
    )
    # A packed sequence has several examples, so that the number of epochs is not known before.
    assert "50 updates of 16 packed sequences, at most 51,200 tokens" in packed_phase
    assert "with padding, at least 0.5 epochs" in packed_phase


def test_number_of_trained_parameters_is_logged(caplog):
    caplog.set_level(logging.INFO)
    shapes = {"a": jax.ShapeDtypeStruct((1000, 128), "float32"), "b": {"c": jax.numpy.zeros(1280)}}
    messages.log_model(BertConfig(vocab_size=100), shapes, {"b": shapes["b"]})
    assert ", 129,280 parameters, of which 1,280 (0.99%) are trained; devices: " in caplog.text


def test_many_epochs_are_not_in_scientific_notation(caplog):
    caplog.set_level(logging.INFO)
    sizes = {"seq_length": 64, "num_steps": 1230, "batch_size": 10, "examples_per_epoch": 100}
    sizes["tokens_per_batch"] = 640
    messages.log_phase(**sizes, is_packed=False)
    assert ", 123 epochs; " in caplog.text


def test_results_of_every_split_and_the_report_are_logged(caplog, tmp_path):
    caplog.set_level(logging.INFO)
    results = {"rte": {"dev": {"accuracy": 0.5, "loss": 0.7}}, "sts": {"dev": {"pearson": 0.25}}}
    (tmp_path / "evaluation.json").write_text(json.dumps(results))
    messages.log_results(tmp_path, Path("runs/four/report.html"), 83.2)
    assert caplog.messages == [
        "final evaluation, rte dev: accuracy 0.5000, loss 0.7000",
        "final evaluation, sts dev: pearson 0.2500",
        "the run is complete (1m 23s in this process); report: runs/four/report.html",
    ]


def test_metrics_of_pretraining_have_an_order():
    metrics = {"padding_share": 0.1, "nsp_accuracy": 0.5, "loss": 7.0, "mlm_loss": 6.25}
    text = "mlm loss 6.2500, nsp accuracy 0.5000, loss 7.0000"
    shown = PretrainingObjective.shown_metrics
    assert messages.format_metrics(metrics, shown_metrics=shown) == text
    assert messages.format_metrics(metrics, ["loss"], shown).startswith("loss 7.0000, mlm loss")
    assert messages.format_metrics({"a": 1.0, "b": 2.0}) == "a 1.0000, b 2.0000"


def test_truncated_examples_are_counted(caplog):
    caplog.set_level(logging.INFO)
    messages.log_truncation("rte dev", 0, 277, 128)
    messages.log_truncation("rte train", 1482, 2490, 64)
    assert caplog.messages == [
        "rte train: 1,482 of 2,490 examples (59.5%) are truncated to 64 tokens"
    ]


def test_run_without_labels_to_evaluate_says_so(caplog, tmp_path):
    caplog.set_level(logging.INFO)
    (tmp_path / "evaluation.json").write_text("{}")
    messages.log_results(tmp_path, tmp_path / "report.html", 5.0)
    assert caplog.messages[0].startswith("no final evaluation: ")
