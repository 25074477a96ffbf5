"""Tests multi-task runs in this process: learning, checkpoints, outputs, errors."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Columns, EqualMixing
from bert_jax.config.objectives import MultiTask
from bert_jax.config.train import WarmupLinear, make_mesh_config
from bert_jax.config.tuning import FullTuning, TuningConfig
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.adapter import export_adapter
from bert_jax.export.export import export
from bert_jax.models.adapters.config import LoRA, PrefixTuning
from bert_jax.models.heads.config import label_thresholds
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.objectives.multi_task import task_params
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.task_processor import require_head
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs import hooks
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.runs.metrics import read_metrics
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.presets import fine_tuning_experiment, multi_task_experiment
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from tests.helpers.one_device import one_device_mesh
from tests.helpers.report_markup import Report
from tests.helpers.same_parameters import assert_same_parameters
from tests.helpers.task_runs import TASKS

# Name of the task -> its kind and its first metric.
NAMES = {
    "reviews": ("classification", "accuracy"),
    "scores": ("regression", "pearson"),
    "words": ("token_classification", "f1"),
    "facts": ("question_answering", "f1"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Writes the files of the tasks, and a small model in `model`."""
    made = tmp_path_factory.mktemp("mixture")
    model = small_model(
        made / "vocabulary",
        num_hidden_layers=1,
        positions=LearnedPositions(max_position_embeddings=40),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    export(model, made / "model")
    return made


def experiment(folder: Path, names=tuple(NAMES), **changes) -> Experiment:
    """Returns an experiment with batches of one length, so that little is compiled."""
    tasks = {name: TASKS[NAMES[name][0]](folder) for name in names}
    settings = {"epochs": 4, "batch_size": 16, "learning_rate": 1e-2, "seed": 7, **changes}
    made = multi_task_experiment(tasks, str(folder / "model"), **settings)
    return override(made, ["data.bucket_lengths=[]", "train.logging.log_every=1"])


@pytest.fixture(scope="module")
def finished(folder) -> Path:
    with one_device_mesh():
        assert run(experiment(folder), folder / "run") == 0
    return folder / "run"


def rows_of(run: Path, kind: str) -> list[dict]:
    return [row for row in read_metrics(run / "metrics.jsonl") if row["split"] == kind]


def predictions(run: Path, name: str, split: str = "dev") -> list[dict]:
    lines = (run / "predictions" / name / f"{split}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_run_learns_and_keeps_the_best_mean_metric(finished):
    results = json.loads((finished / "evaluation.json").read_text())
    assert set(results) == set(NAMES) and set(results["reviews"]) == {"dev", "test"}
    assert results["words"]["dev"]["f1"] > 0.9
    seen = rows_of(finished, "evaluation")
    assert len(seen) == 4
    for row in seen:
        firsts = [row[f"{name}/{metric}"] for name, (_, metric) in NAMES.items()]
        firsts[-1] /= 100  # percent, like SQuAD's script
        assert row["mean"] == pytest.approx(np.mean(firsts))
    best = max(seen, key=lambda row: row["mean"])
    assert best["mean"] > seen[0]["mean"]
    for name, (_, metric) in NAMES.items():
        assert results[name]["dev"][metric] == pytest.approx(best[f"{name}/{metric}"])


def test_log_has_each_task_or_null_without_examples(finished):
    rows = rows_of(finished, "train")
    for name in NAMES:
        losses = [row[f"{name}/loss"] for row in rows]
        assert all(loss is None or loss > 0 for loss in losses)
        assert sum(loss is not None for loss in losses) > len(rows) / 2
    assert {"reviews/accuracy", "scores/mse", "words/accuracy", "facts/accuracy"} <= set(rows[0])


def test_saved_predictions_equal_those_of_the_task_model(finished, folder):
    for name, (kind, _) in NAMES.items():
        task = load_task(TASKS[kind](folder))
        predict = Predictor(load_encoder(finished, name))
        assert predict.kind.name == kind
        for split, examples in task.splits.items():
            if split != "train":
                left = predictions(finished, name, split)
                assert [row["id"] for row in left] == [example.id for example in examples]
        found = predict(task.splits["dev"])
        for row, prediction in zip(predictions(finished, name), found, strict=True):
            for field in row.keys() & {"label", "tags", "answer"}:
                assert prediction[field] == row[field]
            if "value" in row:
                assert prediction["value"] == pytest.approx(row["value"], abs=1e-5)


def test_report_has_a_section_for_each_task(finished):
    report = Report((finished / "report.html").read_text("utf-8"))
    (results,) = report.tables["Results", "Results"]
    values = json.loads((finished / "evaluation.json").read_text())
    shown = {(row[0], row[1]): row[2] for row in results[1:]}
    assert shown["words: dev (40)", "F1"] == f"{values['words']['dev']['f1']:.4g}"
    assert shown["reviews: test (30)", "accuracy"].endswith("%")
    (tasks,) = report.tables["Tasks", "Tasks"]
    assert [row[0] for row in tasks[1:]] == list(NAMES)
    assert ["reviews", "160", "160"] in tasks
    for name in NAMES:
        assert (f"{name}: Analysis of dev", "Worst errors") in report.items
    for title in ("Loss of each task", "Accuracy of each task", "Mean of the tasks' first metrics"):
        assert title in report.text


def test_exported_task_has_a_card_that_names_the_others(finished, tmp_path):
    argv = ["export", str(finished), "--task", "words", "--output", str(tmp_path / "tagger")]
    assert main(argv) == 0
    model = load_encoder(tmp_path / "tagger")
    run_record = load_encoder(finished).run
    assert run_record is not None
    trained = restore_params(finished / "checkpoints", run_record.step)[0]
    flat = paths.flatten(task_params(trained, "words"))
    for path, leaf in paths.flatten(model.params).items():
        np.testing.assert_array_equal(leaf, flat[path], err_msg=path)
    card = (tmp_path / "tagger" / "README.md").read_text("utf-8")
    assert (
        "several tasks at once: `reviews`, `scores`, `words`, `facts`. This model is for `words`"
        in card
    )
    assert "| scores | 160 | 160 |" in card and "160 steps (4 epochs)" in card
    assert "had the best mean" in card


def test_command_line_predicts_with_one_task(finished, capsys):
    assert main(["predict", str(finished), "--task", "words", "the sea sings"]) == 0
    assert json.loads(capsys.readouterr().out)["tags"][1] == "B-LOC"
    for argv, message in (
        (["predict", str(finished), "a text"], "several tasks: reviews, scores, words"),
        (
            ["export", str(finished), "--output", "nowhere"],
            "choose one with --task, as in --task reviews",
        ),
        (["predict", str(finished), "--task", "word", "a"], "did you mean 'words'?"),
        (["evaluate", str(finished), "snli", "--snli-dir", "x"], "as in --model-task reviews"),
    ):
        assert main(argv) in (1, 2)
        assert message in capsys.readouterr().err


def test_run_without_a_task_is_an_encoder(finished, folder):
    model = load_encoder(finished)
    assert set(model.params) == {"encoder"} and model.head is None
    assert model.tasks == tuple(NAMES)
    next_task = fine_tuning_experiment(TASKS["classification"](folder), str(finished))
    assert next_task.objective.model == model.config


def test_heads_start_from_pretrained_pooler_and_matching_head(folder, tmp_path):
    config = experiment(folder, ("reviews", "scores"))
    assert isinstance(config.objective, MultiTask)
    head = config.objective.heads[0].head
    export(
        small_model(
            tmp_path / "v",
            head=head,
            num_hidden_layers=1,
            positions=LearnedPositions(max_position_embeddings=40),
        ),
        tmp_path / "m",
    )
    config = dataclasses.replace(config, init_from=str(tmp_path / "m"))
    grid = sharding.make_mesh(make_mesh_config("dp"))
    setup = TrainSetup.from_experiment(config, grid)
    found = paths.flatten(initialize_or_load(setup)["params"])
    start = paths.flatten(load_encoder(tmp_path / "m").params)
    for path, leaf in found.items():
        name = path.split("/", 2)[2] if path.startswith("heads/") else path
        same = leaf.shape == start[name].shape and np.array_equal(leaf, start[name])
        assert same == (path not in {f"heads/scores/classifier/{p}" for p in ("kernel", "bias")})


def test_tasks_share_an_adapter_and_end_early(folder, tmp_path):
    method = LoRA(rank=4, dropout=0.0, targets=("word_embeddings", "query", "value"))
    names = ("reviews", "words")
    settings = {"epochs": 15, "learning_rate": 2e-2, "tuning": TuningConfig(method=method)}
    config = experiment(folder, names, **settings)
    patience = "train.checkpoints.early_stopping_patience=1"
    with one_device_mesh():
        assert run(override(config, [patience]), tmp_path / "run") == 0
    assert rows_of(tmp_path / "run", "evaluation")[-1]["step"] < config.train.steps
    params, info, _ = restore_params(tmp_path / "run" / "checkpoints")
    assert set(params) == {"adapter", "heads"} and info["base"]["path"] == config.init_from
    assert "lora_a" in params["adapter"]["encoder"]["layers"]["0"]["attention"]["query"]
    results = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert results["words"]["dev"]["f1"] > 0.9
    base = paths.flatten(load_encoder(folder / "model").params["encoder"])
    for name in names:
        model = load_encoder(tmp_path / "run", name)
        encoder = paths.flatten(model.params["encoder"])
        changed = {path for path in base if not np.array_equal(base[path], encoder[path])}
        assert changed == {
            "embeddings/word_embeddings/embedding",
            "layers/0/attention/query/kernel",
            "layers/0/attention/value/kernel",
        }
        task = load_task(TASKS[NAMES[name][0]](folder))
        found = Predictor(model)(task.splits["dev"])
        for row, prediction in zip(predictions(tmp_path / "run", name), found, strict=True):
            for field in row.keys() & {"label", "tags"}:
                assert prediction[field] == row[field]
    with pytest.raises(UserError, match="several heads, for which peft has no format; export the"):
        export_adapter(tmp_path / "run", tmp_path / "adapter")
    tagger = load_encoder(tmp_path / "run", "words")
    export(tagger, tmp_path / "tagger")
    merged = paths.flatten(load_encoder(tmp_path / "tagger").params)
    for path, leaf in paths.flatten(tagger.params).items():
        np.testing.assert_array_equal(merged[path], leaf, err_msg=path)


@pytest.mark.slow
def test_tasks_with_several_labels_have_their_own_thresholds(folder, tmp_path):
    files = {}
    for split in ("train", "dev"):
        rows = [{"text": each, "labels": each.split()[:2]} for each in ("man", "sea man", "sea")]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[split] = str(tmp_path / f"{split}.jsonl")
    two = Columns(**files, text="text", label="labels", kind="multi-label")
    tasks = {
        "two": two,
        "scores": TASKS["regression"](folder),
        "four": TASKS["multi-label"](folder),
    }
    settings = {"epochs": 0.5, "batch_size": 16, "learning_rate": 1e-2}
    made = multi_task_experiment(tasks, str(folder / "model"), mixing=EqualMixing(), **settings)
    with one_device_mesh():
        assert run(override(made, ["data.bucket_lengths=[]"]), tmp_path / "run") == 0
    found = {}
    for name, num_labels in (("two", 2), ("four", 4)):
        model = load_encoder(tmp_path / "run", name)
        found[name] = label_thresholds(require_head(model))
        assert len(found[name]) == num_labels and {*found[name]} != {0.5}
        metrics = Predictor(model).evaluate(load_task(tasks[name]), "dev")
        saved = json.loads((tmp_path / "run/evaluation.json").read_text())[name]["dev"]
        assert metrics == pytest.approx(saved, abs=1e-5)
    assert found["two"] != found["four"][:2]


def test_prefixes_remain_in_the_model_of_a_task(folder, tmp_path):
    tuning = TuningConfig(method=PrefixTuning(length=2))
    config = experiment(folder, ("reviews", "scores"), epochs=0.2, tuning=tuning)
    assert config.train.phases[0].seq_length == 40 - 2
    with one_device_mesh():
        assert run(config, tmp_path / "run") == 0
    for name in ("reviews", "scores"):
        model = load_encoder(tmp_path / "run", name)
        assert model.adapter == tuning.method
        task = load_task(TASKS[NAMES[name][0]](folder))
        found = Predictor(model)(task.splits["dev"])
        for row, prediction in zip(predictions(tmp_path / "run", name), found, strict=True):
            if "value" in row:
                assert prediction["value"] == pytest.approx(row["value"], abs=1e-5)
            else:
                assert prediction["label"] == row["label"]
    with pytest.raises(UserError, match="PrefixTuning, which cannot be merged"):
        export(model, tmp_path / "exported")


def test_the_method_decides_learning_rate_and_epochs(folder):
    tasks = {name: TASKS[NAMES[name][0]](folder) for name in ("reviews", "words")}
    full, lora = (
        multi_task_experiment(tasks, str(folder / "model"), tuning=TuningConfig(method=method))
        for method in (FullTuning(), LoRA())
    )
    for config, rate in ((full, 5e-5), (lora, 5e-4)):
        schedule = config.train.schedule
        assert isinstance(schedule, WarmupLinear) and schedule.peak_learning_rate == rate
    assert lora.train.steps == 3 * full.train.steps


@pytest.mark.slow
def test_killed_run_resumes_bit_identical(folder, tmp_path, monkeypatch):
    config = experiment(folder, ("reviews", "words"), epochs=0.6, mixing=EqualMixing())
    config = override(
        config,
        [
            "train.checkpoints.best_metric=null",
            "train.evaluation=null",
            "train.checkpoints.save_every=4",
        ],
    )
    assert config.train.steps == 12
    assert run(config, tmp_path / "straight") == 0
    call = hooks.call_hooks

    def dying(watching, event):
        call(watching, event)
        if event.step == 7:
            raise ZeroDivisionError("an accident")

    monkeypatch.setattr(hooks, "call_hooks", dying)
    with pytest.raises(ZeroDivisionError):
        run(config, tmp_path / "run")
    monkeypatch.setattr(hooks, "call_hooks", call)
    assert run(config, tmp_path / "run") == 0
    assert_same_parameters(tmp_path / "straight", tmp_path / "run")
    losses = [
        [row["loss"] for row in rows_of(tmp_path / name, "train")] for name in ("straight", "run")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 12


def test_incompatible_settings_are_rejected(folder, tmp_path):
    with pytest.raises(ConfigError, match="'endings' is multiple choice"):
        multi_task_experiment({"endings": TASKS["multiple_choice"](folder)}, str(folder / "model"))
    config = experiment(folder, ("reviews", "scores"))
    assert isinstance(config.objective, MultiTask)
    turned = dataclasses.replace(config.objective, heads=config.objective.heads[::-1])
    with pytest.raises(
        ConfigError, match=r"data.tasks are reviews, scores, but objective.heads are"
    ):
        run(dataclasses.replace(config, objective=turned), tmp_path / "turned")
    alone = config.objective.for_task("reviews")
    with pytest.raises(ConfigError, match="objective is FineTuning; expected MultiTask"):
        run(dataclasses.replace(config, objective=alone), tmp_path / "alone")
    no_dev = dataclasses.replace(TASKS["classification"](folder), dev=None)
    config = multi_task_experiment({"reviews": no_dev}, str(folder / "model"))
    assert config.train.evaluation is None and config.train.checkpoints.best_metric is None
    with pytest.raises(UserError, match="has no train split"):
        multi_task_experiment({"a": dataclasses.replace(no_dev, train=None)}, str(folder / "model"))


def test_finetune_config_excludes_task_flags(capsys):
    recipe = str(Path(__file__).parents[3] / "configs/finetune/multi_task.py")
    for argv, message in (
        (["--config", recipe, "--epochs", "2"], "--epochs cannot be combined with --config"),
        (["--config", recipe, "--model", "m"], "--model cannot be combined with --config"),
        (["--config", recipe, "--glue-dir", "g"], "--glue-dir cannot be combined with --config"),
        (["--config", recipe], "needs --arg model=..."),
        (["--config", recipe, "conll"], "expected one of them"),
        ([recipe, "--model", "m"], "finetune --config "),
        (["conll", "--train", "t", "--model", "m", "--arg", "a=b"], "--arg is for recipes"),
        (["conll", "--train", "t"], "conll needs --model"),
    ):
        assert main(["finetune", *argv, "--run", "nowhere"]) == 2
        assert message in capsys.readouterr().err
