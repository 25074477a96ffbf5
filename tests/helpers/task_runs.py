"""Trains one small fine-tuning run of each kind of task, with texts that look like markup."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path

from bert_jax.apps.testing.models import WORDS, small_model
from bert_jax.config.config_lib import from_json, override, to_json
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Columns, Conll, Squad, Swag, TaskConfig
from bert_jax.export.export import export
from bert_jax.io.file_lock import acquire_lock
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run
from tests.helpers.one_device import one_device_mesh

HOSTILE = "</dd><script>alert(1)</script><img src=http://example.org/x>"
HOSTILE_LABEL = '<i>yes & "no"\''
KINDS = (
    "classification",
    "multi-label",
    "regression",
    "token_classification",
    "question_answering",
    "multiple_choice",
)
PLAIN = [word for word in WORDS if not word.startswith("##")]


def small_experiments(folder: Path) -> Callable[[str], Experiment]:
    """Returns the value of the fixture `task_experiment`: kind of task -> small run's config.

    Several processes may share the folder: the first that needs a kind writes its files.
    """
    folder.mkdir(exist_ok=True)
    made: dict[str, Experiment] = {}

    def get(kind: str) -> Experiment:
        if kind not in made:
            file = folder / f"{kind}-experiment.json"
            with acquire_lock(folder / "experiments.lock", wait=True):
                if not file.exists():
                    file.write_text(json.dumps(to_json(small_experiment(kind, folder))))
            made[kind] = from_json(Experiment, json.loads(file.read_text()))
        return made[kind]

    return get


def small_experiment(kind: str, folder: Path) -> Experiment:
    """Writes the data of a task, and the model to start from, and returns the config of a run."""
    if not (folder / "model").exists():
        model = small_model(
            folder / "vocabulary",
            num_hidden_layers=1,
            positions=LearnedPositions(max_position_embeddings=40),
        )
        export(model, folder / "model")
    experiment = fine_tuning_experiment(
        TASKS[kind](folder),
        str(folder / "model"),
        epochs=3,
        batch_size=16,
        learning_rate=1e-2,
        seed=7,
    )
    return override(experiment, ["train.logging.log_every=1", "data.bucket_lengths=[]"])


def finished_runs(task_experiment: Callable[[str], Experiment]) -> Callable[[str], Path]:
    """Returns the function of the fixture `task_run`: kind of task -> folder of a finished run."""

    def get(kind: str) -> Path:
        experiment = task_experiment(kind)
        folder = Path(experiment.init_from or "").parent
        run_folder, marker = folder / f"run of {kind}", folder / f"{kind}.finished"
        with acquire_lock(folder / f"{kind}.lock", wait=True):
            if not marker.exists():
                with one_device_mesh():
                    assert run(experiment, run_folder) == 0
                marker.touch()
        return run_folder

    return get


def sentence(draw: random.Random, count: int = 6) -> str:
    return " ".join(draw.choices(PLAIN, k=count))


def classification(folder: Path) -> TaskConfig:
    files = {}
    for seed, (split, count) in enumerate({"train": 160, "dev": 50, "test": 30}.items()):
        draw, rows = random.Random(seed), []
        for number in range(count):
            text = sentence(draw)
            label = HOSTILE_LABEL if "sea" in text else "maybe" if "man" in text else "no"
            rows.append((f"{text} {HOSTILE}" if number % 3 else text, "a second text", label))
        files[split] = write_csv(folder / f"{split}.csv", ("text", "pair", "label"), rows)
    return Columns(**files, text="text", text_pair="pair", label="label")


def multi_label(folder: Path) -> TaskConfig:
    """Writes texts of which some have no label; dev has no text with the label "ship"."""
    words = {HOSTILE_LABEL: "sea", "person": "man", "old": "old", "ship": "net"}
    files = {}
    for seed, (split, count) in enumerate({"train": 160, "dev": 50, "test": 40}.items()):
        draw, lines = random.Random(seed), []
        for _ in range(count):
            text = sentence(draw)
            labels = [label for label, word in words.items() if word in text.split()]
            if split == "dev":
                labels = [label for label in labels if label != "ship"]
            lines.append(json.dumps({"text": f"{text} {HOSTILE}", "labels": labels}))
        (folder / f"labels-{split}.jsonl").write_text("\n".join(lines) + "\n")
        files[split] = str(folder / f"labels-{split}.jsonl")
    return Columns(**files, text="text", label="labels", kind="multi-label")


def regression(folder: Path) -> TaskConfig:
    files = {}
    for seed, (split, count) in enumerate({"train": 160, "dev": 40}.items()):
        draw = random.Random(seed)
        texts = [f"{sentence(draw)} {HOSTILE}" for _ in range(count)]
        rows = [(text, str(1.5 * text.count("sea") - text.count("old"))) for text in texts]
        files[split] = write_csv(folder / f"values-{split}.csv", ("text", "label"), rows)
    return Columns(**files, text="text", label="label", kind="regression")


def tagging(folder: Path) -> TaskConfig:
    files = {}
    for seed, (split, count) in enumerate({"train": 160, "dev": 40}.items()):
        draw, blocks = random.Random(seed), []
        for _ in range(count):
            tags = {"man": "B-PER", "sea": "B-LOC", "net": "I-LOC"}
            words = [*sentence(draw).split(), HOSTILE.replace(" ", "")]
            blocks.append("\n".join(f"{word} {tags.get(word, 'O')}" for word in words))
        (folder / f"{split}.conll").write_text("\n\n".join(blocks) + "\n")
        files[split] = str(folder / f"{split}.conll")
    return Conll(**files)


def question_answering(folder: Path) -> TaskConfig:
    files = {}
    for seed, (split, count) in enumerate({"train": 80, "dev": 36}.items()):
        draw, paragraphs = random.Random(seed), []
        for number in range(count):
            context = f"{sentence(draw, 12)} {HOSTILE}"
            word = draw.choice([w for w in context.split()[:12] if w not in ("a", "the", ".")])
            question = f"{draw.choice(('Who', 'What', 'Where'))} is the {word}?"
            answers = [{"text": word, "answer_start": context.index(word)}]
            asked = {"id": f"q{number}", "question": question, "is_impossible": number % 9 == 0}
            asked["answers"] = [] if asked["is_impossible"] else answers
            paragraphs.append({"context": context, "qas": [asked]})
        content = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"{split}.json").write_text(json.dumps(content))
        files[split] = str(folder / f"{split}.json")
    return Squad(**files, version="2.0")


def multiple_choice(folder: Path) -> TaskConfig:
    files, head = {}, ("sent1", "sent2", "ending0", "ending1", "ending2", "label")
    for seed, (split, count) in enumerate({"train": 48, "dev": 30}.items()):
        draw = random.Random(seed)
        rows = [
            (
                sentence(draw),
                "the",
                *(f"{sentence(draw, 3)} {HOSTILE}" for _ in range(3)),
                number % 3,
            )
            for number in range(count)
        ]
        files[split] = write_csv(folder / f"swag-{split}.csv", head, rows)
    return Swag(**files)


TASKS: dict[str, Callable[[Path], TaskConfig]] = {
    "classification": classification,
    "multi-label": multi_label,
    "regression": regression,
    "token_classification": tagging,
    "question_answering": question_answering,
    "multiple_choice": multiple_choice,
}


def write_csv(file: Path, head: tuple, rows: list[tuple]) -> str:
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([head, *rows])
    return str(file)
