"""Compares ways to learn a classification task from K examples of each class (Gao et al. 2021).

<output>/<method>/seed-<n>/   a run folder of a method that trains the encoder (see jobs.py),
                              or result.json of one that does not; seed n is the sample's, too
         results.json         mean, standard deviation and values over the seeds of each method
         table.md, table.html the same as a table

Each seed samples K training examples of each class and K for dev, which selects the checkpoint.
All numbers are on the dev split of the task, which is not used otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.apps.studies.jobs import (
    FOLDER_PLACEHOLDER,
    Interrupted,
    Job,
    JobRunner,
    is_finished,
)
from bert_jax.apps.studies.result_page import ResultTable, write_pages
from bert_jax.apps.studies.trials import seed_statistics
from bert_jax.config.labeled_data import FewShot, Glue, LengthBuckets
from bert_jax.config.sentence_embeddings import ContrastivePairs
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.finetuning.glue_prompts import load_prompt, similar_demonstrations, write_prompt
from bert_jax.data.finetuning.readers.load_task import load_task, sample_few_shot
from bert_jax.errors import ConfigError, UserError, check_range
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.prompt_classifier import PromptClassifier
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs import run_folder
from bert_jax.tasks.metrics.text_baselines import (
    logistic_regression,
    nearest_class_mean,
    pair_features,
    tfidf_predictions,
)
from bert_jax.tasks.registry import compute_metrics
from bert_jax.tasks.text_similarity import add_text_vectors, read_text_vectors, vector_text
from bert_jax.train.preemption import EXIT_DONE
from bert_jax.train.setfit import SetFitConfig, train_setfit

ZERO_SHOT = ("zero-shot", "zero-shot-calibrated")
FEATURES = ("nearest-class-mean", "logistic-regression")
TFIDF = "tf-idf"
SETFIT = "setfit"
PROMPT_TUNING = "prompt-tuning"
DEMONSTRATIONS = "demonstrations"
TRAINED: dict[str, tuple[str, ...]] = {
    "fine-tuning": (),
    "lora": ("--method", "lora"),
    PROMPT_TUNING: (),  # with --prompt
    DEMONSTRATIONS: (),  # with --prompt, a file
}
"""Arguments of `bert-jax finetune` by method."""
METHODS = (TFIDF, *FEATURES, SETFIT, *ZERO_SHOT, *TRAINED)
"""The methods by the names that users type, from the cheapest on; `--help` describes them."""


@dataclass(frozen=True, kw_only=True)
class FewShotConfig:
    """Configures the comparison; `shots` 0 is zero-shot only.

    Attributes:
      prompt: name of a published prompt, or a .json file.
      epochs: training epochs of fine-tuning, LoRA and prompt tuning; None for the default of
        `finetune`. SetFit has its own epochs, batch size and learning rate.
      learning_rate: peak learning rate of these; None for the default of each method.
      max_length: maximum number of tokens in a sequence, except for TF-IDF and frozen features.
    """

    task: Glue
    model: str
    shots: int
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    prompt: str
    epochs: float | None = None
    batch_size: int = 8
    learning_rate: float | None = None
    max_length: int = 128

    def __post_init__(self) -> None:
        check_range("--shots", self.shots, at_least=0)
        if self.shots == 0 and not set(self.methods) <= set(ZERO_SHOT):
            raise ConfigError(
                f"--shots 0 and --methods {' '.join(self.methods)}; expected only "
                f"{' or '.join(ZERO_SHOT)}, which need no examples"
            )


def fine_tuning_job(config: FewShotConfig, name: str, seed: int, *method_arguments: str) -> Job:
    """Returns a run of `bert-jax finetune` in the folder `name` on the sample of a seed."""
    arguments = ["finetune", f"glue/{config.task.task}", "--run", FOLDER_PLACEHOLDER]
    arguments += ["--model", config.model, "--shots", str(config.shots)]
    arguments += ["--batch-size", str(config.batch_size), "--max-length", str(config.max_length)]
    # Not fitted to the texts of each sample, so that all share their compiled programs.
    arguments += ["--set", f"data.bucket_lengths={list(LengthBuckets.bucket_lengths)}"]
    if config.task.folder is not None:
        arguments += ["--glue-dir", config.task.folder]
    for flag, value in (("epochs", config.epochs), ("learning-rate", config.learning_rate)):
        arguments += [] if value is None else [f"--{flag}", str(value)]
    seeds = ("--seed", str(seed), "--split-seed", str(seed))
    return Job(name=name, arguments=(*arguments, *method_arguments, *seeds))


def train_examples(sample: Task) -> tuple[list[TextExample], list[str]]:
    """Returns the training examples of a sample and their labels."""
    examples = [each for each in sample.splits["train"] if isinstance(each, TextExample)]
    return examples, [str(example.label) for example in examples]


def embed_examples(embedder: Embedder, examples: Sequence[TextExample]) -> np.ndarray:
    """Returns the features of examples, float32 [n, E] or, of pairs, [n, 4 E].

    Args:
      embedder: gives the vectors of the texts.
      examples: texts, whose features are their vectors, or pairs, for which see `pair_features`.
    """
    first = embedder([e.text for e in examples])
    pairs = [e.text_pair for e in examples if e.text_pair is not None]
    if not pairs:
        return first
    return pair_features(first, embedder(pairs))


def predict_tfidf(sample: Task) -> list[str]:
    """Predicts the labels of the test split from TF-IDF features of the training split.

    Both texts of a pair are joined with a space.
    """
    train, labels = train_examples(sample)
    texts = [
        f"{each.text} {each.text_pair or ''}"
        for each in (*train, *sample.splits["test"])
        if isinstance(each, TextExample)
    ]
    return tfidf_predictions((texts[: len(train)], labels), texts[len(train) :])


RESULT_FILE = "result.json"
_TEST = "test"


class FewShotStudy:
    """Runs all methods with all seeds; finished ones are not repeated."""

    def __init__(self, config: FewShotConfig, output: Path):
        """Reads the task and samples the examples of every seed.

        Raises:
          UserError: a class has fewer than 2 K examples, or the task or a prompt cannot be read.
        """
        self._config, self._output = config, output
        self._task = load_task(config.task)
        self._prompt = load_prompt(self._task.name, config.prompt)
        self._prompt.words_of(self._task.labels)
        self._samples = {
            seed: sample_few_shot(
                FewShot(task=config.task, shots=config.shots, seed=seed), self._task
            )
            for seed in (config.seeds if config.shots else ())
        }
        dev = self._task.splits.get("dev", ())
        self._test = tuple(example for example in dev if isinstance(example, TextExample))
        if not self._test:
            raise UserError(
                f"{self._task.name} has no dev split, on which the methods are compared; add its "
                "file to --glue-dir"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that may not change when a study is resumed.

        Seeds and methods may. The prompt is the content of a file, so that results of another
        prompt are not mixed with its own.
        """
        fields = asdict(self._config) | {"prompt": asdict(self._prompt)}
        return {name: fields[name] for name in fields if name not in ("seeds", "methods")}

    def run(self, runner: JobRunner) -> dict[str, str]:
        """Runs what is not finished: first the methods that train nothing.

        Returns:
          {name of a failed job: reason}.

        Raises:
          UserError: the model has no masked-LM head, or a label word is not a token of it.
          Interrupted: a signal asked to stop.
        """
        self._run_zero_shot()
        self._run_features()
        if TFIDF in self._config.methods:
            for seed, sample in self._samples.items():
                self._save_if_new(TFIDF, seed, lambda sample=sample: predict_tfidf(sample))
        self._run_setfit()
        if DEMONSTRATIONS in self._config.methods:
            self._write_demonstrations()
        trained = [method for method in self._config.methods if method in TRAINED]
        return runner.run([job for method in trained for job in self._jobs(method)])

    def results(self, failed: Mapping[str, str]) -> dict[str, Any]:
        """Returns all numbers of the finished runs as JSON values, of earlier calls, too."""
        methods: dict[str, Any] = {}
        for method in METHODS:
            found = self._metrics_by_seed(method)
            metrics = {
                name: seed_statistics({seed: values[name] for seed, values in found.items()})
                for name in self._task.metrics
                if found
            }
            if metrics:
                methods[method] = metrics
        return {"config": asdict(self._config), "methods": methods, "failed": dict(failed)}

    def write_table(self, results: dict[str, Any]) -> ResultTable:
        """Writes table.md and table.html from `results`; returns the table."""
        config, metrics = self._config, self._task.metrics
        rows = []
        for method, found in results["methods"].items():
            cells = [
                f"{found[name]['mean']:.4f}"
                + (f" ({found[name]['std']:.4f})" if found[name]["runs"] > 1 else "")
                for name in metrics
            ]
            rows.append([method, str(found[metrics[0]]["runs"]), *cells])
        columns = ("method", "samples", *(f"{name}, mean (std)" for name in metrics))
        table = ResultTable(columns=columns, rows=rows)
        notes = [
            f"{config.shots} training examples of each class and as many for dev, sampled with the "
            f"seeds {', '.join(map(str, config.seeds))}; the model is {config.model}.",
            f"All numbers are on the {len(self._test):,} examples of the dev split of the task.",
            f"The prompt is {self._prompt.template!r} ({config.prompt}).",
            *(f"{job} failed: {reason}" for job, reason in results["failed"].items()),
        ]
        write_pages(self._output, f"{self._task.name}, {config.shots} shots", table, notes)
        return table

    def _jobs(self, method: str) -> list[Job]:
        """Returns the runs of a method, one for each seed, in the order of the seeds."""
        config = self._config
        method_arguments = TRAINED[method]
        if method == PROMPT_TUNING:
            method_arguments += ("--prompt", config.prompt)
        if method == DEMONSTRATIONS:
            method_arguments += ("--prompt", str(self._output / DEMONSTRATIONS / "prompt.json"))
        return [
            fine_tuning_job(config, f"{method}/seed-{seed}", seed, *method_arguments)
            for seed in config.seeds
        ]

    def _write_demonstrations(self) -> None:
        """Writes a prompt with demonstrations by similarity, and the vectors of new texts."""
        folder = self._output / DEMONSTRATIONS
        file = folder / "vectors.jsonl"
        splits = [split for sample in self._samples.values() for split in sample.splits.values()]
        examples = dict.fromkeys(
            vector_text(example)
            for split in splits
            for example in split
            if isinstance(example, TextExample)
        )
        saved = read_text_vectors(file) if file.exists() else ()
        texts = [text for text in examples if text not in saved]
        if not texts:
            return
        vectors = Embedder(load_encoder(self._config.model))(texts)
        folder.mkdir(parents=True, exist_ok=True)
        write_prompt(folder / "prompt.json", similar_demonstrations(self._prompt, str(file)))
        add_text_vectors(file, texts, vectors)

    def _metrics_by_seed(self, method: str) -> dict[int, dict[str, float]]:
        found = {}
        if method in TRAINED:
            for seed, job in zip(self._config.seeds, self._jobs(method), strict=True):
                if is_finished(self._output, job):
                    file = self._output / job.name / run_folder.EVALUATION
                    found[seed] = read_json_object(file)[_TEST]
            return found
        # The result of a zero-shot method is the same for all samples.
        for seed in (0,) if method in ZERO_SHOT else self._config.seeds:
            file = self._result_file(method, seed)
            if file.exists():
                saved = read_json_object(file)
                found[seed] = saved[_TEST] if method == SETFIT else saved
        return found

    def _result_file(self, method: str, seed: int) -> Path:
        folder = self._output / method
        if method == SETFIT:
            return folder / f"seed-{seed}" / run_folder.EVALUATION
        return (folder if method in ZERO_SHOT else folder / f"seed-{seed}") / RESULT_FILE

    def _is_saved(self, methods: Sequence[str], seeds: Sequence[int]) -> bool:
        wanted = [method for method in methods if method in self._config.methods]
        return all(self._result_file(m, seed).exists() for m in wanted for seed in seeds)

    def _save_if_new(self, method: str, seed: int, predict: Callable[[], list[str]]) -> None:
        """Computes and saves the metrics of predicted labels, unless they are saved already."""
        file = self._result_file(method, seed)
        if method not in self._config.methods or file.exists():
            return
        class_ids = [self._task.labels.index(label) for label in predict()]
        one_hot = np.eye(len(self._task.labels), dtype=np.float32)[class_ids]
        metrics = compute_metrics(self._task, self._test, one_hot)
        file.parent.mkdir(parents=True, exist_ok=True)
        # The loss of one-hot predictions has no meaning, so only the task's metrics are saved.
        write_json(file, {name: metrics[name] for name in self._task.metrics})

    def _run_zero_shot(self) -> None:
        if self._is_saved(ZERO_SHOT, (0,)):
            return
        config, labels = self._config, self._task.labels
        classifier = PromptClassifier(
            load_encoder(config.model), self._prompt, labels, max_length=config.max_length
        )
        for method, score in zip(
            ZERO_SHOT, (classifier.logits, classifier.calibrated_logits), strict=True
        ):
            self._save_if_new(
                method,
                0,
                lambda score=score: [labels[i] for i in score(self._test).argmax(axis=1)],
            )

    def _run_setfit(self) -> None:
        if SETFIT not in self._config.methods:
            return
        config = self._config
        for seed in self._samples:
            file = self._result_file(SETFIT, seed)
            if file.exists():
                continue
            task = FewShot(task=config.task, shots=config.shots, seed=seed)
            setfit = SetFitConfig(
                pairs=ContrastivePairs(task=task, seed=seed),
                model=config.model,
                max_length=config.max_length,
                seed=seed,
            )
            if train_setfit(setfit, file.parent) != EXIT_DONE:
                raise Interrupted

    def _run_features(self) -> None:
        """Classifies the frozen features of the model, the mean of its last hidden states."""
        if self._is_saved(FEATURES, self._config.seeds):
            return
        embedder = Embedder(load_encoder(self._config.model))
        test_vectors = embed_examples(embedder, self._test)
        for seed, sample in self._samples.items():
            train, labels = train_examples(sample)
            vectors = embed_examples(embedder, train)
            for method, predict in zip(
                FEATURES, (nearest_class_mean, logistic_regression), strict=True
            ):
                arguments = vectors, labels, test_vectors
                self._save_if_new(method, seed, lambda f=predict, a=arguments: f(*a))
