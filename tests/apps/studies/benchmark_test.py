"""Runs GLUE benchmarks with fake runs and checks their numbers, table, and submission.

Covers bert_jax/apps/studies/benchmark.py, bert_jax/apps/studies/leaderboard.py,
bert_jax/apps/studies/result_page.py, and bert_jax/apps/studies/cli/glue.py.
"""

import csv
import io
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from bert_jax.__main__ import main, parse_command
from bert_jax.apps.studies import jobs, leaderboard
from bert_jax.apps.studies.benchmark import SAME_SEED_MNLI, Benchmark, BenchmarkConfig
from bert_jax.apps.studies.jobs import JobRunner
from bert_jax.config.labeled_data import Glue
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.tasks.registry import compute_metrics, kind_of
from tests.helpers.contamination import write_item_rows


def fake_run(arguments: Sequence[str], run: Path) -> str | None:
    """Fakes `bert-jax finetune` with random predictions that depend on its arguments.

    A larger learning rate gives more correct predictions. A run with seed 9 fails.
    """
    args = parse_command([text.replace("{folder}", str(run)) for text in arguments])
    if args.seed == 9:
        return "no luck"
    task = load_task(args.task_config())
    kind = kind_of(task)
    rng = np.random.default_rng([args.seed, zlib.crc32(args.task.encode())])
    found = {}
    (run / "predictions").mkdir(parents=True)
    (run / "model.txt").write_text(args.model)
    for split, examples in task.splits.items():
        labeled = getattr(examples[0], "label", None) is not None
        outputs = rng.normal(2.5, 2.0, (len(examples), len(task.labels) or 1))
        if labeled and task.labels:
            correct = kind.get_references(examples, task.labels)
            outputs[np.arange(len(examples)), correct] += 1e4 * args.learning_rate
        outputs = outputs if task.labels else outputs[:, 0]
        if labeled and split != "train":
            found[split] = compute_metrics(task, examples, outputs)
        lines = "".join(
            json.dumps(row) + "\n"
            for row in kind.predictions_to_json(examples, outputs, task.labels)
        )
        (run / "predictions" / f"{split}.jsonl").write_text(lines)
    (run / "evaluation.json").write_text(json.dumps(found))
    return None


class FakeJobRunner(JobRunner):
    """Fakes every run instead of starting a process."""

    def _run_one(self, job, bar):
        run = self._folder / job.name
        failure = fake_run(job.arguments, run)
        if failure is None:
            write_json(run / jobs.FINISHED_FILE, {"arguments": list(job.arguments)})
        return failure


NLI = ("entailment", "neutral", "contradiction")


def write_tsv(file: Path, header: str, rows: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([header.replace(" ", "\t"), *rows]) + "\n")


def pairs(count: int, labels: tuple[str, ...] = ()) -> list[str]:
    """Returns lines of index, two sentences, and a random label if there are labels."""
    rng = np.random.default_rng(count)
    rows = [f"{n}\tthe old man {n}\tthe sea" for n in range(count)]
    return [f"{row}\t{rng.choice(labels)}" for row in rows] if labels else rows


@pytest.fixture(scope="module")
def glue_dir(tmp_path_factory) -> str:
    """Writes small RTE, MRPC, STS-B, MNLI, WNLI, and AX tasks, and SST-2 without a train split."""
    folder = tmp_path_factory.mktemp("glue")
    header_without_label, header_with_label = (
        "index sentence1 sentence2",
        "index sentence1 sentence2 label",
    )
    rte_labels = ("entailment", "not_entailment")
    for split, count in (("train", 40), ("dev", 30), ("test", 3000)):
        labels = () if split == "test" else rte_labels
        write_tsv(
            folder / f"RTE/{split}.tsv",
            header_without_label if split == "test" else header_with_label,
            pairs(count, labels),
        )
    for split, count in (("train", 40), ("dev", 30), ("test", 7)):
        scores = () if split == "test" else ("0.0", "2.5", "5.0")
        header = header_without_label if split == "test" else f"{header_without_label} score"
        write_tsv(folder / f"STS-B/{split}.tsv", header, pairs(count, scores))
    for split, count in (("train", 60), ("dev_matched", 50), ("dev_mismatched", 50)):
        write_tsv(
            folder / f"MNLI/{split}.tsv", f"{header_without_label} gold_label", pairs(count, NLI)
        )
    write_tsv(folder / "MNLI/test_matched.tsv", header_without_label, pairs(20))
    write_tsv(folder / "AX/diagnostic.tsv", header_without_label, pairs(1104))
    write_tsv(folder / "WNLI/train.tsv", header_with_label, [*pairs(9, ("0",)), *pairs(8, ("1",))])
    write_tsv(folder / "WNLI/dev.tsv", header_with_label, pairs(8, ("0", "1")))
    write_tsv(folder / "WNLI/test.tsv", header_without_label, pairs(146))
    write_tsv(folder / "SST-2/dev.tsv", "sentence label", ["good\t1", "bad\t0"])
    (folder / "MRPC").mkdir()
    for split in ("train", "dev"):
        rows = [f"{n % 2}\t1\t2\ta man {n}\tthe sea" for n in range(20)]
        head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (folder / f"MRPC/{split}.tsv").write_text(head + "\n".join(rows) + "\n")
    return str(folder)


def run_benchmark(config: BenchmarkConfig, output: Path) -> tuple[Benchmark, dict]:
    benchmark = Benchmark(config, output)
    with FakeJobRunner(output) as runner:
        failed = benchmark.run(runner)
    return benchmark, benchmark.results(failed)


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def labels_and_predictions(glue_dir: str, run: Path) -> tuple[list[str], list[str]]:
    """Reads labels and predictions without the readers of the project."""
    lines = (Path(glue_dir) / "RTE/dev.tsv").read_text().splitlines()
    rows = list(csv.DictReader(lines, delimiter="\t"))
    predictions = lines_of(run / "predictions/dev.jsonl")
    return [row["label"] for row in rows], [row["label"] for row in predictions]


def test_results_match_independent_metrics(glue_dir, tmp_path):
    config = BenchmarkConfig(
        glue_dir=glue_dir,
        model="m",
        tasks=("rte", "sst2"),
        seeds=(0, 1, 2, 3),
        learning_rate=(1e-4,),
    )
    output = tmp_path / "output"
    _, results = run_benchmark(config, output)
    found = results["tasks"]["rte"]
    runs = {seed: output / f"rte/seed-{seed}" for seed in range(4)}
    accuracy = {
        s: accuracy_score(*labels_and_predictions(glue_dir, run)) for s, run in runs.items()
    }
    values = np.array(list(accuracy.values()))
    row = found["splits"]["dev"]["accuracy"]
    assert len(set(values)) > 1
    assert row["values"] == pytest.approx({str(seed): value for seed, value in accuracy.items()})
    assert row["median"] == pytest.approx(np.median(values))
    assert row["mean"] == pytest.approx(np.mean(values))
    assert row["std"] == pytest.approx(np.std(values, ddof=1))
    assert row["best"] == values.max() == accuracy[found["best_seed"]]
    assert (
        accuracy[found["median_seed"]] == np.sort(values)[1]
    )  # the lower of the two middle values
    # Computes the bootstrap interval of the median run independently.
    correct = np.equal(*labels_and_predictions(glue_dir, runs[found["median_seed"]]))
    draws = np.random.default_rng(1).choice(correct, (20_000, len(correct))).mean(axis=1)
    assert row["confidence_interval"] == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.04)
    assert results["skipped"] == {"sst2": f"no train split: {glue_dir} has no SST-2/train.tsv"}
    assert results["failed"] == {} and found["num_train_examples"] == 40


def test_best_setting_by_median_and_failures(glue_dir, tmp_path):
    config = BenchmarkConfig(
        glue_dir=glue_dir,
        model="m",
        tasks=("rte", "mrpc"),
        seeds=(0, 9),
        learning_rate=(1e-6, 1e-3),
        batch_size=(16, 32),
    )
    benchmark, results = run_benchmark(config, tmp_path / "output")
    for name in ("rte", "mrpc"):
        found = results["tasks"][name]
        assert found["best_setting"] == {"batch_size": 16, "learning_rate": 1e-3, "epochs": 3.0}
        assert [row["median"] for row in found["settings"]][1] == 1.0
        assert len(found["settings"]) == 4
        setting = "batch_size=16,epochs=3.0,learning_rate=0.001"
        assert benchmark.best_run(name) == tmp_path / "output" / name / setting / "seed-0"
    assert set(results["tasks"]["mrpc"]["splits"]["dev"]) == {"f1", "accuracy"}
    assert len(results["failed"]) == 8
    assert set(results["failed"].values()) == {"no luck"}


def test_mnli_init_from_same_seed_runs(glue_dir, tmp_path):
    config = BenchmarkConfig(
        glue_dir=glue_dir,
        model="m",
        tasks=("rte", "stsb", "wnli", "mnli"),
        seeds=(0, 1, 9),
        mnli_init=SAME_SEED_MNLI,
    )
    output = tmp_path / "output"
    _, results = run_benchmark(config, output)
    for seed in (0, 1):
        for name in ("rte", "stsb"):
            captured = (output / f"{name}/seed-{seed}/model.txt").read_text()
            assert captured == str(output / f"mnli/seed-{seed}")
        assert (output / f"wnli/seed-{seed}/model.txt").read_text() == "m"
    why = "the run of mnli that it starts from has failed"
    assert results["failed"]["rte/seed-9"] == results["failed"]["stsb/seed-9"] == why
    assert set(results["tasks"]["mnli"]["splits"]) == {"dev", "dev_mismatched"}
    stsb = results["tasks"]["stsb"]["splits"]["dev"]
    low, high = stsb["spearman"]["confidence_interval"]
    assert set(stsb) == {"pearson", "spearman"} and low < high
    other = BenchmarkConfig(
        glue_dir=glue_dir, model="m", tasks=("rte", "sst2"), mnli_init=SAME_SEED_MNLI
    )
    with pytest.raises(UserError, match="needs the task mnli: mnli is not in --tasks"):
        Benchmark(other, output)
    explicit_model = BenchmarkConfig(
        glue_dir=glue_dir, model="m", tasks=("rte",), seeds=(2,), mnli_init="n"
    )
    run_benchmark(explicit_model, output)
    assert (output / "rte/seed-2/model.txt").read_text() == "n"


def test_submission_zip_format(glue_dir, tmp_path):
    config = BenchmarkConfig(
        glue_dir=glue_dir, model="m", tasks=("rte", "stsb", "mnli"), seeds=(0, 1)
    )
    benchmark, results = run_benchmark(config, tmp_path / "output")
    file = tmp_path / "submission.zip"
    problems = leaderboard.write_submission(file, benchmark.best_run, glue_dir)
    missing = ["CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "MNLI-mm.tsv", "QNLI.tsv"]
    assert [name for name, why in problems.items() if why.startswith("missing: ")] == missing
    assert problems["CoLA.tsv"] == "missing: no finished run of cola"
    assert problems["STS-B.tsv"] == "7 examples; the official test set has 1,379"
    assert "MNLI-m.tsv" in problems and "RTE.tsv" not in problems

    content = {}
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            text = archive.read(name).decode("ascii")
            assert text.endswith("\n") and "\r" not in text
            content[name] = [line.split("\t") for line in text.splitlines()]
    assert set(content) == {"STS-B.tsv", "MNLI-m.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv"}
    for name, rows in content.items():
        assert rows[0] == ["index", "prediction"]
        assert [row[0] for row in rows[1:]] == [str(n) for n in range(len(rows) - 1)], name
    predictions = {name: {row[1] for row in rows[1:]} for name, rows in content.items()}
    assert predictions["RTE.tsv"] == {"entailment", "not_entailment"}
    assert predictions["AX.tsv"] == predictions["MNLI-m.tsv"] == set(NLI)
    assert predictions["WNLI.tsv"] == {"0"} and len(content["WNLI.tsv"]) == 147
    assert all(re.fullmatch(r"[0-5]\.\d{3}", score) for score in predictions["STS-B.tsv"])

    best = tmp_path / f"output/rte/seed-{results['tasks']['rte']['best_seed']}"
    lines = lines_of(best / "predictions/test.jsonl")
    assert [row[1] for row in content["RTE.tsv"][1:]] == [row["label"] for row in lines]
    before = file.read_bytes()
    leaderboard.write_submission(file, benchmark.best_run, glue_dir)
    assert file.read_bytes() == before


def test_submission_file_class_names():
    rows = [{"id": "0", "label": "equivalent"}, {"id": "1", "label": "not_equivalent"}]
    assert leaderboard.submission_file("mrpc", rows) == "index\tprediction\n0\t1\n1\t0\n"
    rows = [{"id": "0", "value": 7.0}, {"id": "1", "value": -0.2}, {"id": "2", "value": 3.14159}]
    assert leaderboard.submission_file("stsb", rows).split()[3::2] == ["5.000", "0.000", "3.142"]


def test_glue_command_writes_results_and_table(glue_dir, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(jobs, "JobRunner", FakeJobRunner)
    (tmp_path / "<m>").mkdir()  # never read, because no job runs
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "output"
    flags = ["glue", "--glue-dir", glue_dir, "--model", "<m>", "--output", str(output), "--zip"]
    flags += ["--tasks", "rte", "sst2", "--learning-rate", "1e-4"]
    assert main([*flags, "--num-seeds", "2"]) == 0
    captured = capsys.readouterr()
    assert "no train split" in captured.err
    assert "submission.zip: CoLA.tsv missing: no finished run of cola" in captured.err
    results = json.loads((output / "results.json").read_text())
    table = (output / "table.md").read_text()
    assert captured.out.strip() in table
    row = results["tasks"]["rte"]["splits"]["dev"]["accuracy"]
    job = next(line for line in table.splitlines() if line.startswith("| RTE"))
    shown = [part.strip() for part in job.strip("|").split("|")]
    assert shown[:4] == ["RTE", "dev", "accuracy", "2"]
    assert shown[4:8] == [f"{100 * row[key]:.2f}" for key in ("median", "mean", "std", "best")]
    assert "Epochs 3; batch size 32; learning rate 0.0001; seeds 0, 1." in table
    assert "SST-2 was skipped: no train split" in table
    page = (output / "table.html").read_text()
    assert "&lt;m&gt;" in page and "<m>" not in page and shown[4] in page
    # The same runs with what is known about the pretraining corpus.
    task = load_task(Glue(task="rte", folder=glue_dir))
    write_item_rows(tmp_path / "corpus", task, "dev", {str(n) for n in range(10)})
    contamination = ["--contamination", str(tmp_path / "corpus")]
    assert main([*flags, "--num-seeds", "2", *contamination]) == 0
    capsys.readouterr()
    rte = json.loads((output / "results.json").read_text())["tasks"]["rte"]
    groups = rte["by_contamination"]["dev"]
    assert (groups["clean"]["examples"], groups["found"]["examples"]) == (20, 10)
    accuracy = (2 * groups["clean"]["accuracy"] + groups["found"]["accuracy"]) / 3
    median = rte["splits"]["dev"]["accuracy"]["values"][str(rte["median_seed"])]
    assert accuracy == pytest.approx(median, abs=1e-5)
    text = f"clean: {groups['clean']['accuracy']:.4f} (20"
    assert text in (output / "table.md").read_text()
    # More seeds can be added: finished runs are not repeated, and failures are reported.
    assert main([*flags, "--num-seeds", "10"]) == 1
    captured = capsys.readouterr().err
    assert (
        "2 of 10 runs are already finished" in captured and "rte/seed-9 failed: no luck" in captured
    )
    second_results = json.loads((output / "results.json").read_text())
    assert list(second_results["failed"]) == ["rte/seed-9"]
    values = second_results["tasks"]["rte"]["splits"]["dev"]["accuracy"]["values"]
    assert (
        list(values) == [str(seed) for seed in range(9)] and values.items() > row["values"].items()
    )
    assert main([*flags, "--num-seeds", "1", "--epochs", "5"]) == 1
    assert "created with other settings:\n  epochs.0: was 3.0, now 5.0" in capsys.readouterr().err


def test_invalid_benchmark_configs(glue_dir, tmp_path):
    with pytest.raises(UserError, match="none of --tasks can be trained"):
        Benchmark(BenchmarkConfig(glue_dir=glue_dir, model="m", tasks=("sst2",)), tmp_path)
    with pytest.raises(ConfigError, match="tasks contains 'ax'"):
        BenchmarkConfig(glue_dir=glue_dir, model="m", tasks=("ax",))
    with pytest.raises(ConfigError, match="expected at least one value and no duplicates"):
        BenchmarkConfig(glue_dir=glue_dir, model="m", seeds=(0, 0))


def test_f1_of_the_table_equals_scikit_learn(glue_dir, tmp_path):
    config = BenchmarkConfig(glue_dir=glue_dir, model="m", tasks=("mrpc",), seeds=(0,))
    _, results = run_benchmark(config, tmp_path / "output")
    rows = list(
        csv.reader(io.StringIO((Path(glue_dir) / "MRPC/dev.tsv").read_text()), delimiter="\t")
    )
    predictions = (tmp_path / "output/mrpc/seed-0/predictions/dev.jsonl").read_text().splitlines()
    predicted = [int(json.loads(line)["label"] == "equivalent") for line in predictions]
    expected = f1_score([int(row[0]) for row in rows[1:]], predicted)
    found = results["tasks"]["mrpc"]["splits"]["dev"]["f1"]
    assert found["median"] == found["best"] == pytest.approx(expected)
    assert found["std"] is None and found["runs"] == 1
