"""Tests few-shot learning: samples, fine-tuning with a prompt, and the table of methods.

Covers bert_jax/apps/studies/few_shot.py, bert_jax/apps/studies/cli/few_shot.py and
bert_jax/data/finetuning/readers/load_task.py, and what fine-tuning and prediction do with a prompt.
"""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax import __main__ as cli
from bert_jax.apps.studies import few_shot
from bert_jax.apps.studies.cli import few_shot as command_line
from bert_jax.apps.studies.few_shot import METHODS, ZERO_SHOT, FewShotConfig, FewShotStudy
from bert_jax.apps.studies.jobs import JobRunner
from bert_jax.apps.testing.models import small_model
from bert_jax.cli import finetune
from bert_jax.config.config_lib import override
from bert_jax.config.data import FineTuningData
from bert_jax.config.labeled_data import Columns, FewShot, Glue
from bert_jax.config.prompts import Demonstrations, LabelWords, Prompt, SimilarExamples
from bert_jax.data.finetuning.example import Example, Task, TextExample
from bert_jax.data.finetuning.glue_prompts import read_prompt
from bert_jax.data.finetuning.readers.load_task import load_task, sample_few_shot
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.params import paths
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_encoder
from bert_jax.tasks.text_similarity import read_text_vectors
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run
from tests.helpers.killed_run import compare_killed_run
from tests.helpers.one_device import one_device_mesh

TEMPLATE = "{text} by the {mask}."
WORDS = {"negative": ["sea"], "positive": ["net", "man"]}
PROMPT = Prompt(
    template=TEMPLATE,
    label_words=tuple(LabelWords(label=k, words=tuple(v)) for k, v in WORDS.items()),
)


def make_examples(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Returns (text, label): positive texts have the word "sings", negative ones have "old"."""
    rng = random.Random(seed)
    words = ("the", "man", "a", "and", "mend")
    made = []
    for index in range(count):
        label = ("negative", "positive")[index % 2]
        text = [*rng.choices(words, k=3), "sings" if label == "positive" else "old"]
        made.append((" ".join(rng.sample(text, len(text))), label))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with SST-2 in GLUE's format, a pretrained model and a prompt."""
    folder = tmp_path_factory.mktemp("few_shot")
    sst2 = folder / "glue" / "SST-2"
    sst2.mkdir(parents=True)
    for split, count in (("train", 24), ("dev", 10)):
        lines = [f"{t}\t{int(x == 'positive')}" for t, x in make_examples(count, seed=count)]
        (sst2 / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    export(small_model(folder / "vocabulary", num_hidden_layers=1), folder / "model")
    (folder / "prompt.json").write_text(json.dumps({"template": TEMPLATE, "label_words": WORDS}))
    return folder


def make_task(num_train: int) -> Task:
    train = tuple(
        TextExample(id=str(i), text=text, label=label)
        for i, (text, label) in enumerate(make_examples(num_train))
    )
    splits: dict[str, tuple[Example, ...]] = {"train": train, "dev": train[:3]}
    labels = ("negative", "positive")
    return Task(name="t", kind="classification", labels=labels, metrics=(), splits=splits)


def test_samples_are_those_of_the_script_of_lm_bff():
    task, shots = make_task(20), 3
    config = FewShot(task=Glue(task="sst2", folder="glue"), shots=shots, seed=42)
    # tools/generate_k_shot_data.py: seed, shuffle the lines, group them by label.
    np.random.seed(42)
    lines: Any = list(task.splits["train"])
    np.random.shuffle(lines)
    groups = [[line for line in lines if line.label == label] for label in task.labels]
    found = sample_few_shot(config, task).splits
    assert list(found["train"]) == [line for group in groups for line in group[:shots]]
    assert list(found["dev"]) == [line for group in groups for line in group[shots : 2 * shots]]
    assert found["test"] == task.splits["dev"]


def test_a_class_with_too_few_examples_is_refused():
    config = FewShot(task=Glue(task="sst2", folder="glue"), shots=6, seed=42)
    with pytest.raises(UserError, match="11 training examples with the label 'positive'; expected"):
        sample_few_shot(config, make_task(23))


def test_fine_tuning_with_demonstrations_trains_the_masked_lm_head(folder, tmp_path):
    task = FewShot(task=Glue(task="sst2", folder=str(folder / "glue")), shots=6)
    demonstrations = Demonstrations(num_samples=2, max_text_tokens=1)
    experiment = fine_tuning_experiment(
        task,
        str(folder / "model"),
        epochs=60,
        batch_size=12,
        learning_rate=1e-2,
        max_length=20,
        prompt=dataclasses.replace(PROMPT, demonstrations=demonstrations),
    )
    once = ["train.checkpoints.save_every=60", "train.evaluation.eval_every=60"]
    experiment = override(experiment, [*once, "data.bucket_lengths=[]"])
    with one_device_mesh():
        assert run(experiment, tmp_path / "run") == 0
    before, model = load_encoder(folder / "model"), load_encoder(tmp_path / "run")
    assert set(model.params) == {"encoder", "masked_lm"}
    old, new = (paths.flatten(each.params["masked_lm"]) for each in (before, model))
    assert not any(np.array_equal(old[path], new[path]) for path in old)
    assert Predictor(model).evaluate(load_task(task), "train")["accuracy"] == 1
    lines = (tmp_path / "run" / "predictions" / "test.jsonl").read_text().splitlines()
    expected = [json.loads(line)["probabilities"]["positive"] for line in lines]
    found = Predictor(model)(load_task(task).splits["test"])
    assert [p["probabilities"]["positive"] for p in found] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(UserError, match="fine-tuned with a prompt, for which Hugging Face has no"):
        export(model, tmp_path / "exported")


@pytest.mark.slow  # three processes
def test_a_killed_run_with_a_prompt_resumes_bit_exactly(folder, tmp_path):
    steps, every = 120, 15
    arguments = [
        *("finetune", "glue/sst2"),
        *("--glue-dir", str(folder / "glue"), "--model", str(folder / "model")),
        *("--prompt", str(folder / "prompt.json"), "--demonstrations", "1", "--shots", "6"),
        *("--epochs", str(steps // 3), "--batch-size", "4", "--max-length", "20"),
        *("--learning-rate", "1e-3", "--set", f"train.checkpoints.save_every={every}"),
        *(f"train.evaluation.eval_every={every}", "data.bucket_lengths=[]"),
    ]
    compare_killed_run(arguments, tmp_path, steps)


def test_prompts_fit_neither_other_tasks_nor_other_labels(folder):
    model, data = str(folder / "model"), tuple(folder.glob("glue/*/dev.tsv"))
    columns = Columns(train=str(data[0]), text="sentence", label="label", kind="regression")
    with pytest.raises(ConfigError, match="kind of task is regression; expected a classification"):
        fine_tuning_experiment(columns, model, max_length=16, prompt=PROMPT)
    columns = Columns(train=str(data[0]), text="sentence", label="label")
    with pytest.raises(ConfigError, match=r"label 'negative'; .*the task are 0, 1"):
        fine_tuning_experiment(columns, model, max_length=16, prompt=PROMPT)


def test_prompt_files_are_strict(folder, tmp_path):
    assert read_prompt(folder / "prompt.json") == PROMPT
    (tmp_path / "prompt.json").write_text('{"tempalte": ""}')
    with pytest.raises(UserError, match="unknown key 'tempalte'; did you mean 'template'"):
        read_prompt(tmp_path / "prompt.json")
    invalid = {"template": TEMPLATE, "label_words": {"negative": "sea"}}
    (tmp_path / "prompt.json").write_text(json.dumps(invalid))
    with pytest.raises(UserError, match="an object with a list of words for each label"):
        read_prompt(tmp_path / "prompt.json")


def test_study_compares_methods_and_does_not_repeat_them(folder, tmp_path, monkeypatch, capsys):
    trained: list[str] = []

    def run_jobs(runner, jobs):
        """Parses the command of each job as `bert-jax finetune` would, and writes its results."""
        for job in jobs:
            args = cli.parse_command(job.arguments)
            data = finetune.make_experiment(args).data
            assert (
                isinstance(data, FineTuningData)
                and isinstance(data.task, FewShot)
                and data.task.shots == 2
            )
            has_prompt = job.name.startswith(("prompt-tuning", "demonstrations"))
            assert (data.prompt is not None) == has_prompt
            if job.name.startswith("demonstrations"):
                assert data.prompt is not None and data.prompt.demonstrations is not None
                selection = data.prompt.demonstrations.selection
                assert isinstance(selection, SimilarExamples)
                vectors = read_text_vectors(selection.vectors)
                examples = load_task(data.task).splits.values()
                norms = [
                    np.linalg.norm(vectors(each))
                    for split in examples
                    for each in split
                    if isinstance(each, TextExample)
                ]
                assert len(norms) == 4 + 4 + 10
                np.testing.assert_allclose(norms, 1, rtol=1e-5)
            trained.append(job.name)
            run_folder = tmp_path / "out" / job.name
            run_folder.mkdir(parents=True, exist_ok=True)
            score = data.task.seed / 100
            (run_folder / "evaluation.json").write_text(
                json.dumps({"dev": {"accuracy": 0.0}, "test": {"accuracy": score}})
            )
            (run_folder / "finished.json").write_text(json.dumps({"arguments": job.arguments}))
        return {}

    def run_setfit(config, run_folder):
        """Writes results as `train_setfit` does, which tests/train/setfit_test.py runs."""
        score = config.pairs.task.seed / 100
        run_folder.mkdir(parents=True)
        (run_folder / "evaluation.json").write_text(json.dumps({"test": {"accuracy": score}}))
        return 0

    monkeypatch.setattr(few_shot, "train_setfit", run_setfit)
    monkeypatch.setattr(JobRunner, "run", run_jobs)
    command = ["few-shot", "sst2", str(folder / "model"), "--glue-dir", str(folder / "glue")]
    command += ["--output", str(tmp_path / "out"), "--shots", "2"]
    command += ["--prompt", str(folder / "prompt.json"), "--max-length", "16"]
    seeds = ["--seeds", "13", "21"]
    assert cli.main([*command, *seeds]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())["methods"]
    assert list(results) == list(METHODS)
    assert results["lora"]["accuracy"]["mean"] == pytest.approx(0.17)
    assert results["setfit"]["accuracy"]["mean"] == pytest.approx(0.17)
    assert results["zero-shot"]["accuracy"]["runs"] == 1
    assert all(0 <= results[method]["accuracy"]["mean"] <= 1 for method in METHODS)
    assert len(trained) == 8
    table = capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(
            "bert_jax.apps.studies.few_shot.load_encoder", None
        )  # nothing is computed again
        assert cli.main([*command, *seeds]) == 0
    assert capsys.readouterr().out == table
    assert cli.main([*command, "--seeds", "13", "42", "--methods", "demonstrations"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())["methods"]
    assert list(results) == list(METHODS)  # those of earlier calls stay
    runs = {method: results[method]["accuracy"]["runs"] for method in ("demonstrations", "lora")}
    assert runs == {"demonstrations": 2, "lora": 1}
    assert cli.main([*command[:-2], *seeds, "--max-length", "18"]) == 1


def test_the_command_line_names_all_methods():
    assert command_line._METHODS == METHODS
    assert command_line._ZERO_SHOT == ZERO_SHOT


def test_zero_shots_allow_zero_shot_methods_only(folder):
    task, model = Glue(task="sst2", folder=str(folder / "glue")), str(folder / "model")
    fields = {"task": task, "model": model, "prompt": str(folder / "prompt.json")}
    fields |= {"shots": 0, "seeds": (13,), "max_length": 16}
    with pytest.raises(ConfigError, match="--shots 0 and --methods lora; expected only zero-shot"):
        FewShotConfig(**fields, methods=("lora",))
    study = FewShotStudy(FewShotConfig(**fields, methods=("zero-shot",)), folder)
    assert list(study.results({})["methods"]) == []
