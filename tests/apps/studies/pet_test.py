"""Tests bert_jax/apps/studies/pet.py: soft labels of an ensemble, and the generations of iPET."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax import __main__ as cli
from bert_jax.apps.studies.job_runner import JobRunner
from bert_jax.apps.studies.pet import PetStudy, draw_labeled_examples, mean_logits
from bert_jax.apps.testing.models import small_model
from bert_jax.data.finetuning.example import TextExample
from bert_jax.errors import UserError
from bert_jax.export.export import export

LABELS = ("negative", "positive")


def texts_of_sst2(count: int, seed: int) -> list[str]:
    """Returns lines of SST-2: positive texts have the word "sings", negative ones have "old"."""
    rng = random.Random(seed)
    lines = ["sentence\tlabel"]
    for index in range(count):
        words = rng.choices(("the", "man", "a", "and", "sea"), k=3)
        lines.append(f"{' '.join([*words, ('old', 'sings')[index % 2]])}\t{index % 2}")
    return lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with SST-2 in GLUE's format, a pretrained model and two prompts."""
    folder = tmp_path_factory.mktemp("pet")
    sst2 = folder / "glue" / "SST-2"
    sst2.mkdir(parents=True)
    for split, count in (("train", 40), ("dev", 10)):
        (sst2 / f"{split}.tsv").write_text("\n".join(texts_of_sst2(count, seed=count)) + "\n")
    export(small_model(folder / "vocabulary", num_hidden_layers=1), folder / "model")
    words = {"negative": ["sea"], "positive": ["net"]}
    for name, template in (("by", "{text} by the {mask}."), ("and", "{text} and {mask}")):
        prompt = {"template": template, "label_words": words}
        (folder / f"{name}.json").write_text(json.dumps(prompt))
    return folder


def command(folder: Path, output: Path, *methods: str) -> list[str]:
    prompts = [str(folder / f"{name}.json") for name in ("by", "and")]
    return [
        *("few-shot", "sst2", str(folder / "model"), "--glue-dir", str(folder / "glue")),
        *("--output", str(output), "--shots", "2", "--seeds", "13", "--max-length", "16"),
        *("--prompt", prompts[0], "--ensemble", *prompts, "--methods", *methods),
    ]


def test_weights_of_zero_give_the_plain_mean():
    logits = [np.array([[0.0, 4.0]]), np.array([[2.0, 0.0]])]
    np.testing.assert_array_equal(mean_logits(logits, [1.0, 3.0]), [[1.5, 1.0]])
    np.testing.assert_array_equal(mean_logits(logits, [0.0, 0.0]), [[1.0, 2.0]])


def test_certain_examples_are_sampled_more_often():
    examples = [TextExample(id=str(index), text="") for index in range(3)]
    # Probabilities of the predicted class: 0.9, 0.6 and, the only one of the other class, 0.8.
    logits = np.log([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    rng = np.random.RandomState(0)
    sampled = Counter(
        (example.id, example.label)
        for _ in range(2000)
        for example in draw_labeled_examples(examples, logits, LABELS, 1, rng)
    )
    assert sampled[("2", "positive")] == 2000
    assert sampled[("0", "negative")] + sampled[("1", "negative")] == 2000
    assert sampled[("0", "negative")] / 2000 == pytest.approx(0.9 / 1.5, abs=0.04)
    repeated = draw_labeled_examples(examples, logits, LABELS, 5, rng)
    assert Counter(example.label for example in repeated) == {"negative": 5, "positive": 5}
    with pytest.raises(UserError, match="label 'positive' for none of 2 unlabeled texts"):
        draw_labeled_examples(examples[:2], logits[:2], LABELS, 1, rng)


def test_generations_grow_and_the_classifier_reads_soft_labels(
    folder, tmp_path, monkeypatch, capsys
):
    trained: list[str] = []

    def run_jobs(runner, jobs):
        """Checks the arguments of each job, and writes its results."""
        for job in jobs:
            args = cli.build_parser().parse_args(["finetune", *job.arguments, "--run", "r"])
            assert args.split_seed == 13
            assert (args.train_file is None) == ("generation-1" in job.name)
            trained.append(job.name)
            run = tmp_path / job.name
            run.mkdir(parents=True, exist_ok=True)
            (run / "evaluation.json").write_text(json.dumps({"test": {"accuracy": 0.75}}))
            (run / "finished.json").write_text(json.dumps({"arguments": job.arguments}))
        return {}

    class KeywordClassifier:
        """Scores a text by its keyword; the logits of the prompt "by" are twice as large."""

        def __init__(self, model, prompt, labels, *, max_length):
            self.scale = 2.0 if prompt.template.endswith("the {mask}.") else 1.0

        def logits(self, examples):
            assert all(e.label is None or len(examples) == 4 for e in examples)
            signs = np.array([1.0 if "sings" in example.text else -1.0 for example in examples])
            return self.scale * np.stack([-signs, signs], axis=1)

    monkeypatch.setattr(JobRunner, "run", run_jobs)
    monkeypatch.setattr("bert_jax.apps.studies.pet.PromptClassifier", KeywordClassifier)
    monkeypatch.setattr("bert_jax.apps.studies.pet.load_model", lambda path: None)
    # The ensemble may still be chosen after other methods.
    assert cli.main([*command(folder, tmp_path, "tf-idf"), "--ensemble", "lm-bff"]) == 0
    assert cli.main(command(folder, tmp_path, "pet", "ipet")) == 0
    names = [f"{prompt}-{repetition}" for prompt in ("by", "and") for repetition in range(3)]
    generations = [
        [f"ensemble/seed-13/generation-{number}/{name}" for name in names] for number in (1, 2, 3)
    ]
    # `ipet` asks for the first generation again, which the real runner skips.
    assert trained == [
        *generations[0],
        "pet/seed-13",
        *(name for generation in generations for name in generation),
        "ipet/seed-13",
    ]
    ensemble = tmp_path / "ensemble" / "seed-13"
    for generation, count in ((2, 10), (3, 50)):
        file = ensemble / f"generation-{generation}" / "and-1.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert Counter(line["label"] for line in lines) == dict.fromkeys(LABELS, count)
        assert all((line["label"] == "positive") == ("sings" in line["text"]) for line in lines)
    soft = [json.loads(line) for line in (ensemble / "pet.jsonl").read_text().splitlines()]
    assert len(soft) == 40 - 8  # neither the sample nor its dev split
    # The weights are equal, so the mean of the scales 2 and 1 is left.
    assert all(np.abs(line["logits"]).tolist() == [1.5, 1.5] for line in soft)
    assert all((line["logits"][1] > 0) == ("sings" in line["text"]) for line in soft)
    results = json.loads((tmp_path / "results.json").read_text())["methods"]
    assert [results[method]["accuracy"]["mean"] for method in ("pet", "ipet")] == [0.75, 0.75]
    monkeypatch.setattr("bert_jax.apps.studies.pet.PromptClassifier", None)  # all logits are saved
    assert cli.main(command(folder, tmp_path, "pet", "ipet")) == 0
    capsys.readouterr()
    assert cli.main([*command(folder, tmp_path, "pet"), "--unlabeled", "5"]) == 1
    assert "num_unlabeled: was 10000, now 5" in capsys.readouterr().err


def test_failures_of_pet_leave_the_other_methods(folder, tmp_path, monkeypatch, capsys):
    def run_study(study, runner, method):
        raise UserError("no text of this label")

    monkeypatch.setattr(PetStudy, "run", run_study)
    arguments = [*command(folder, tmp_path, "tf-idf", "ipet"), "--seeds", "13", "21"]
    assert cli.main([*arguments, "--shots", "10"]) == 1
    assert "no training examples besides the sample" in capsys.readouterr().err
    assert not (tmp_path / "tf-idf").exists()  # refused before the first method
    assert cli.main(arguments) == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["methods"]["tf-idf"]["accuracy"]["runs"] == 2
    reason = "no text of this label"
    assert results["failed"] == {"ipet/seed-13": reason, "ipet/seed-21": reason}


@pytest.mark.slow
def test_pet_trains_a_classifier_on_the_labels_of_its_ensemble(folder, tmp_path):
    arguments = ["--epochs", "20", "--learning-rate", "3e-3"]
    assert cli.main([*command(folder, tmp_path, "pet"), *arguments]) == 0
    lines = (tmp_path / "ensemble" / "seed-13" / "pet.jsonl").read_text().splitlines()
    soft = [json.loads(line) for line in lines]
    by_text = {line["text"]: np.array(line["logits"]) for line in soft}
    weights = json.loads((tmp_path / "ensemble" / "seed-13" / "weights.json").read_text())
    assert set(weights) == {"by", "and"}
    members = sorted((tmp_path / "ensemble" / "seed-13" / "generation-1").glob("*.npy"))
    assert len(members) == 6
    # The two prompts, at least, give different logits.
    assert len({np.load(member).tobytes() for member in members}) >= 2
    assert len(by_text) > 1
    results = json.loads((tmp_path / "results.json").read_text())["methods"]
    assert results["pet"]["accuracy"]["runs"] == 1
