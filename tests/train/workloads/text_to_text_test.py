"""Fine-tunes a tiny T5 on columns of texts and on a GLUE task, and generates its answers.

Covers bert_jax/train/workloads/text_to_text.py, configs/finetune/text_to_text.py and
bert_jax/cli/arguments/text_to_text.py.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from bert_jax.__main__ import main
from bert_jax.config.experiment import Experiment
from bert_jax.config.generation import GenerationConfig
from bert_jax.config.labeled_data import Columns, NamedTextTask, TextToTextData
from bert_jax.config.objectives import Seq2Seq
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.config.train import AdamW, MeshConfig, WarmupLinear
from bert_jax.data.text_to_text import TextTask, TextToTextExample
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.seq2seq import export_seq2seq
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.t5.config import T5Config
from bert_jax.objectives.seq2seq import Seq2SeqObjective
from bert_jax.parallel.sharding import make_mesh
from bert_jax.predict.generator import Generator
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq, load_seq2seq
from bert_jax.text.learn import train_tokenizer
from bert_jax.train.workloads.text_to_text import (
    GenerationEvaluator,
    TextToTextWorkload,
    task_metrics,
)

pytest.importorskip("sacrebleu")

COLORS = ("red", "green", "blue", "black")
RTE_LABELS = ("entailment", "not_entailment")
RECIPE = str(Path(__file__).parents[3] / "configs/finetune/text_to_text.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a T5 of width 16 with random parameters, and texts that are answered by a color."""
    folder = tmp_path_factory.mktemp("text_to_text")
    rows = [(f"the {color} house", color) for color in COLORS]
    texts = [" ".join(row) for row in rows] * 20
    texts += ["rte sst2 sentence1: sentence2: not_entailment positive negative"] * 5
    tokenizer, _ = train_tokenizer(
        texts, TokenizerTrainingConfig(kind="unigram", vocab_size=48, sentinels=4)
    )
    config = T5Config(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        d_kv=16,
        num_attention_heads=2,
        intermediate_size=64,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout_rate=0.0,
        relative_attention_num_buckets=8,
    )
    params = jax.device_get(Seq2SeqObjective(Seq2Seq(model=config)).init(jax.random.key(0)))
    model = LoadedSeq2Seq(params=params, config=config, tokenizer=tokenizer, path="random")
    export_seq2seq(model, folder / "t5")
    lines = ["text,color", *(f"{source},{target}" for source, target in rows * 4)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    return folder


def _command(folder: Path, run: str, *flags: str) -> list[str]:
    files = [f"--train={folder / 'data.csv'}", f"--dev={folder / 'data.csv'}"]
    columns = ["--source=text", "--target=color", f"--model={folder / 't5'}"]
    return ["finetune", "text2text", *files, *columns, f"--run={folder / run}", *flags]


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    "packing", ["false", pytest.param("true", marks=pytest.mark.slow)], ids=["padded", "packed"]
)
def test_text2text_learns_and_writes_its_answers(folder: Path, packing: str) -> None:
    name = f"run-{packing}"
    sizes = ["--epochs=60", "--batch-size=8", "--max-length=32", "--learning-rate=0.03"]
    settings = ["train.evaluation.eval_every=60", "train.checkpoints.save_every=60"]
    flags = [*sizes, "--max-target-length=16", "--arg", f"packing={packing}", "--set", *settings]
    assert main(_command(folder, name, *flags)) == 0
    metrics = json.loads((folder / name / "evaluation.json").read_text())["dev"]
    assert metrics["exact_match"] == 100 and metrics["rouge1"] == 100
    lines = (folder / name / "predictions/columns-dev.jsonl").read_text().splitlines()
    report = (folder / name / "report.html").read_text()
    assert "<h2>Token F1, dev</h2>" in report and "No result" not in report
    first = json.loads(lines[0])
    assert first == {"id": "0", "prediction": "red", "targets": ["red"]}
    assert load_seq2seq(folder / name).config.num_decoder_layers == 1


@pytest.mark.slow
def test_glue_mixture_on_two_hosts_one_of_them_stopped(folder: Path, tmp_path: Path) -> None:
    for name, head, row, labels in (
        ("RTE", "index\tsentence1\tsentence2\tlabel", "0\tthe {}\tthe house\t{}", RTE_LABELS),
        ("SST-2", "sentence\tlabel", "the {} house\t{}", ("0", "1")),
    ):
        (tmp_path / name).mkdir()
        for split in ("train", "dev"):
            rows = [row.format(color, labels[i % 2]) for i, color in enumerate(COLORS * 3)]
            (tmp_path / name / f"{split}.tsv").write_text("\n".join([head, *rows]) + "\n")
    run = tmp_path / "run"
    hosts = ["--hosts=2", "--devices=2", "--kill", "host=1@step=3"]
    data = [f"model={folder / 't5'}", f"glue_dir={tmp_path}", "tasks=rte,sst2"]
    sizes = ["steps=8", "eval_every=4", "batch_size=8", "seq_length=48", "target_length=16"]
    command = ["simulate", RECIPE, f"--run={run}", *hosts, "--arg", *data, *sizes]
    assert main([*command, "learning_rate=0.02"]) == 0
    metrics = json.loads((run / "evaluation.json").read_text())["dev"]
    assert {"mean", "rte/accuracy", "sst2/accuracy"} <= set(metrics)
    lines = (run / "predictions/rte-dev.jsonl").read_text().splitlines()
    predictions = [json.loads(line)["prediction"] for line in lines]
    sources = [f"rte sentence1: the {color} sentence2: the house" for color in COLORS * 3]
    settings = GenerationConfig(max_new_tokens=16, max_source_tokens=48)
    one_device = Generator(load_seq2seq(run), settings)
    assert predictions == [result.text for result in one_device(sources)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--truncation=windows"], "--truncation is not an option of text2text"),
        (["--method=lora"], "--method is not an option of text2text"),
        (["--target", "a", "b"], "--source article --target summary; found 3: color, a, b"),
        (["--frozen-encoder"], "--frozen-encoder is not an option of text2text"),
        (["--config=x"], "expected one of them"),
        (["--label=color"], "--label is not an option of text2text"),
        (["--arg", "batch_size=4"], "text2text sets it with --batch-size"),
        (["--arg", "adafactr=false"], "did you mean 'adafactor'"),
    ],
)
def test_flags_of_encoders_are_refused(folder: Path, capsys, flags: list[str], message) -> None:
    assert main(_command(folder, "refused", *flags)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["columns", "--source=a"], "--source a is a flag of the task text2text, not of columns"),
        (["columns", "--target=b"], "or the task text2text, whose column it names"),
        (["--config", RECIPE, "--source=a"], "expected --arg source=COLUMN, or no --source"),
        (["text2text", "--model=m", "--train=f", "--dev=f", "--source=a"], "found no --target"),
    ],
)
def test_flags_of_texts_with_other_tasks_are_refused(capsys, flags: list[str], message) -> None:
    assert main(["finetune", *flags, "--run=never"]) == 2
    assert message in capsys.readouterr().err


def test_arguments_and_flags_reach_the_recipe(folder: Path, monkeypatch) -> None:
    experiments: list[Experiment] = []
    monkeypatch.setattr(
        "bert_jax.train.run.run", lambda experiment, *_: experiments.append(experiment) or 0
    )
    flags = ["--max-target-length=9", "--encoding=latin-1", "--arg", "adafactor=false"]
    assert main(_command(folder, "arguments", *flags)) == 0
    (experiment,) = experiments
    assert isinstance(experiment.train.optimizer, AdamW)
    assert experiment.train.schedule == WarmupLinear(peak_learning_rate=3e-5, warmup_steps=1)
    assert experiment.train.phases[0].target_length == 9
    checkpoints = experiment.train.checkpoints
    assert (checkpoints.best_metric, checkpoints.best_mode) == ("token_f1", "max")
    assert isinstance(experiment.data, TextToTextData)
    assert experiment.data.predicted_splits == ("dev", "dev_mismatched")


def test_recipe_ranks_checkpoints_by_the_main_metrics(folder: Path) -> None:
    arguments = [f"model={folder / 't5'}", "glue_dir=glue"]
    for tasks, metric in (("mrpc", "f1"), ("mrpc,stsb", "mean")):
        experiment = call_recipe(load_recipe(RECIPE), [*arguments, f"tasks={tasks}"], RECIPE)
        assert experiment.train.checkpoints.best_metric == metric
    experiment = call_recipe(load_recipe(RECIPE), [*arguments, "predict_test=true"], RECIPE)
    assert experiment.data.predicted_splits[2:] == ("test", "test_mismatched", "ax")
    with pytest.raises(ConfigError, match="tasks has wnli, expected all or some of cola"):
        call_recipe(load_recipe(RECIPE), [*arguments, "tasks=wnli"], RECIPE)


def test_plan_of_the_recipe_counts_both_stacks(folder: Path, capsys) -> None:
    data = [f"{name}={folder / 'data.csv'}" for name in ("train", "dev")]
    columns = ["source=text", "target=color", f"model={folder / 't5'}"]
    sizes = ["batch_size=16", "seq_length=32", "target_length=8"]
    arguments = [RECIPE, "--slice", "v5e-4", "--json", "--arg", *data, *columns, *sizes]
    assert main(["plan", *arguments]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["slices"]
    (phase,) = plan["phases"]
    model = load_seq2seq(folder / "t5").config
    assert phase["step"]["model_flops"] == 3 * 16 * model.forward_flops(32, 8)
    assert (phase["target_length"], phase["per_device_batch_size"]) == (8, 4)
    # 16 sequences on 4 devices: two fields of the source, and two of the targets.
    assert phase["memory_bytes"]["batch"] == 4 * 4 * 2 * (32 + 8)


def test_recipe_needs_data(folder: Path) -> None:
    arguments = [f"model={folder / 't5'}"]
    with pytest.raises(ConfigError, match="expected source and target, or glue_dir"):
        call_recipe(load_recipe(RECIPE), arguments, RECIPE)
    with pytest.raises(ConfigError, match="expected train, source and target together"):
        call_recipe(load_recipe(RECIPE), [*arguments, "source=a"], RECIPE)


def test_labels_longer_than_targets_are_refused_before_training(folder: Path) -> None:
    file = str(folder / "data.csv")
    arguments = [f"model={folder / 't5'}", f"train={file}", f"dev={file}", "source=text"]
    experiment = call_recipe(load_recipe(RECIPE), [*arguments, "target=color"], RECIPE)
    task = Columns(train=file, dev=file, text="color", label="text")
    data: Any = dataclasses.replace(experiment.data, tasks=(NamedTextTask(name="own", task=task),))
    phase = dataclasses.replace(experiment.train.phases[0], target_length=3)
    train = dataclasses.replace(experiment.train, phases=(phase,))
    with pytest.raises(UserError, match=r"task 'own': the label 'the \w+ house' has .* at least"):
        TextToTextWorkload(dataclasses.replace(experiment, train=train), data, experiment.objective)


def test_metrics_of_labels_and_scores() -> None:
    def task(kind: str, targets: list[str], metrics: tuple[str, ...]) -> TextTask:
        examples = (TextToTextExample(id="1", source="s", targets=(text,)) for text in targets)
        return TextTask(
            kind=kind, labels=("no", "yes"), metrics=metrics, splits={"dev": tuple(examples)}
        )

    labels = task("classification", ["no", "yes", "yes", "no"], ("accuracy",))
    assert task_metrics(labels, "dev", ["no", "yes", "yes!", "No"]) == {"accuracy": 0.5}
    scores = task("regression", ["0.0", "2.6", "5.0"], ("pearson", "spearman"))
    assert task_metrics(scores, "dev", ["0.2", "2.4", "4.8"])["spearman"] == pytest.approx(1.0)
    texts = task("question_answering", ["a b"], ("f1", "exact_match"))
    model = LoadedSeq2Seq(params={}, config=T5Config(vocab_size=8), tokenizer=None, path="")
    mesh = make_mesh(MeshConfig())
    evaluator = GenerationEvaluator(
        model, GenerationConfig(), ComputeConfig(), {"a": labels, "b": texts}, "dev", mesh
    )
    outputs = {"a": ["no", "no", "no", "no"], "b": ["a b"]}
    metrics = evaluator.metrics(outputs)
    # The mean is of fractions: an accuracy of 0.5 and a token F1 of 100.
    assert metrics["mean"] == 0.75 and metrics["b/token_f1"] == 100
    assert set(metrics) == set(evaluator.known_metrics)
