"""Distills an ensemble of prompt-tuned models into a classifier: PET and iPET.

Pattern-exploiting training (PET, Schick and Schütze 2021): several models are tuned with each
prompt on the few labeled examples, their mean logits are the soft labels of unlabeled texts, and a
new classifier is trained on these at temperature 2. iPET repeats the first step: each model of the
next generation is trained on more examples, which some models of the last one have labeled.

<output>/ensemble/settings.json                      the prompts and the number of texts
                  seed-<n>/weights.json              weight of each prompt in the mean
                           generation-<g>/<prompt>-<r>/          run folder of a model,
                                          <prompt>-<r>.npy       its logits of the unlabeled texts,
                                          <prompt>-<r>.jsonl     its training examples, from g = 2
                           <method>.jsonl            training examples with the soft labels
         <method>/seed-<n>/                          run folder of the classifier
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import softmax

from bert_jax.apps.studies.few_shot_config import DISTILLED, FewShotConfig, fine_tuning_job
from bert_jax.apps.studies.job_runner import SETTINGS_FILE, Job, JobRunner
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.finetuning.prompts.glue_prompts import load_prompt
from bert_jax.data.finetuning.readers.training_file import write_training_file
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path, write_json
from bert_jax.predict.prompt_classifier import PromptClassifier
from bert_jax.pretrained.load import load_model
from bert_jax.runs import run_folder

REPETITIONS = 3
"""Models for each prompt, with different seeds."""

GROWTH = 5
"""Factor by which the training examples of iPET grow in each generation, the paper's d."""

TEACHER_FRACTION = 0.25
"""Fraction of the other models that label the examples of one model of iPET, the paper's lambda."""

SETTINGS = f"ensemble/{SETTINGS_FILE}"
"""The file of the settings of all ensembles, relative to the output folder."""

_WEIGHTS_FILE = "weights.json"


def mean_logits(logits: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Computes the weighted mean of the logits of an ensemble, float64 [examples, C].

    Args:
      logits: those of each model, [examples, C].
      weights: one of each model; if all are zero, the mean is not weighted.
    """
    return np.average(logits, axis=0, weights=weights if any(weights) else None)


def draw_labeled_examples(
    examples: Sequence[TextExample],
    logits: np.ndarray,
    labels: Sequence[str],
    count: int,
    rng: np.random.RandomState,
) -> list[TextExample]:
    """Draws `count` examples of each predicted class, certain ones with a higher probability.

    The probability of an example is proportional to that of its predicted class (section 3.4 of
    the paper). As in the authors' code, the examples of a class that has too few are repeated.

    Args:
      examples: unlabeled texts.
      logits: [examples, C], by which they are labeled.

    Raises:
      UserError: no example is predicted to have one of the labels.
    """
    probabilities = softmax(logits.astype(np.float64), axis=1)
    predicted = probabilities.argmax(axis=1)
    sampled: list[TextExample] = []
    for class_id, label in enumerate(labels):
        candidates = np.flatnonzero(predicted == class_id)
        if not len(candidates):
            raise UserError(
                f"the ensemble predicts the label {label!r} for none of {len(examples):,} "
                "unlabeled texts, so the next generation of iPET has no examples of it; try "
                "--methods pet, other prompts or a larger --unlabeled"
            )
        candidates = np.tile(candidates, -(-count // len(candidates)))
        scores = probabilities[candidates, class_id]
        indices = rng.choice(candidates, size=count, replace=False, p=scores / scores.sum())
        sampled += [dataclasses.replace(examples[index], label=label) for index in indices]
    return sampled


def classifier_job(config: FewShotConfig, output: Path, method: str, seed: int) -> Job:
    """Returns the run that trains the classifier of `pet` or `ipet`."""
    file = str(_ensemble_folder(output, seed) / f"{method}.jsonl")
    return fine_tuning_job(config, f"{method}/seed-{seed}", seed, "--train-file", file)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Member:
    """Identifies a model of the ensemble: its prompt and the number of its repetition."""

    prompt: str
    repetition: int

    @property
    def prompt_name(self) -> str:
        """Returns the name of its prompt: for a file, without the folder."""
        return Path(self.prompt).stem

    @property
    def name(self) -> str:
        """Returns the name of its folder."""
        return f"{self.prompt_name}-{self.repetition}"


class PetStudy:
    """Runs PET and iPET on one sample; models and logits that are saved are not computed again."""

    def __init__(self, config: FewShotConfig, output: Path, seed: int, task: Task, sample: Task):
        """Chooses the unlabeled texts: training examples of the task that are not in the sample.

        Args:
          output: folder of the whole study.
          seed: that of the sample.
          task: the task with all training examples, whose labels are not read.
          sample: the few labeled examples.

        Raises:
          UserError: no texts are left, or a prompt cannot be read or has other labels.
        """
        self._config, self._output, self._seed = config, output, seed
        self._folder, self._labels = _ensemble_folder(output, seed), task.labels
        self._train = [e for e in sample.splits["train"] if isinstance(e, TextExample)]
        self._prompts = {
            name: load_prompt(f"glue/{config.task.task}", name) for name in config.ensemble_prompts
        }
        for prompt in self._prompts.values():
            prompt.words_of(task.labels)
        self._members = [
            _Member(prompt=prompt, repetition=repetition)
            for prompt in self._prompts
            for repetition in range(REPETITIONS)
        ]
        labeled = {example.id for split in ("train", "dev") for example in sample.splits[split]}
        texts = [
            TextExample(id=example.id, text=example.text, text_pair=example.text_pair)
            for example in task.splits["train"]
            if isinstance(example, TextExample) and example.id not in labeled
        ]
        if not texts:
            raise UserError(
                f"{task.name} has no training examples besides the sample; pet and ipet label such "
                "texts: choose a smaller --shots or other --methods"
            )
        order = np.random.RandomState(seed).permutation(len(texts))[: config.num_unlabeled]
        self._unlabeled = [texts[index] for index in order]

    def run(self, runner: JobRunner, method: str) -> dict[str, str]:
        """Trains the ensemble and the classifier of a method.

        Returns:
          {name of a failed run: reason}; after a failure, no later run is started.

        Raises:
          UserError: the model has no masked-LM head, a label word is not a token of it, or no
            text was predicted to have one of the labels.
          Interrupted: a signal asked to stop.
        """
        generations = DISTILLED[method]
        for generation in range(1, generations + 1):
            if generation > 1:
                self._write_training_files(generation)
            jobs = [self._job(member, generation) for member in self._members]
            if failed := runner.run(jobs):
                return failed
        self._write_soft_labels(self._folder / f"{method}.jsonl", generations)
        return runner.run([classifier_job(self._config, self._output, method, self._seed)])

    def _job(self, member: _Member, generation: int) -> Job:
        folder = self._generation_folder(generation).relative_to(self._output)
        method_arguments = ["--prompt", member.prompt]
        if generation > 1:
            method_arguments += ["--train-file", str(self._training_file(member, generation))]
        return fine_tuning_job(
            self._config,
            f"{folder}/{member.name}",
            self._seed,
            *method_arguments,
            repetition=member.repetition,
        )

    def _write_training_files(self, generation: int) -> None:
        """Writes the training examples of each model, labeled by models of the last generation."""
        weights, size = self._weights(), len(self._train) // len(self._labels)
        for number, member in enumerate(self._members):
            file = self._training_file(member, generation)
            if file.exists():
                continue
            rng = np.random.RandomState([self._seed, generation, number])
            others = [each for each in self._members if each != member]
            num_teachers = max(1, round(TEACHER_FRACTION * len(others)))
            chosen = [others[i] for i in rng.choice(len(others), num_teachers, replace=False)]
            logits = mean_logits(
                [self._logits(each, generation - 1) for each in chosen],
                [weights[each.prompt_name] for each in chosen],
            )
            # New examples of each class; with the sample 5 times as many as in the last generation.
            count = size * GROWTH ** (generation - 1) - size
            sampled = draw_labeled_examples(self._unlabeled, logits, self._labels, count, rng)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_training_file(file, [*self._train, *sampled])

    def _write_soft_labels(self, file: Path, generation: int) -> None:
        if file.exists():
            return
        weights = self._weights()
        logits = mean_logits(
            [self._logits(member, generation) for member in self._members],
            [weights[member.prompt_name] for member in self._members],
        )
        examples = [
            dataclasses.replace(example, label_logits=tuple(map(float, row)))
            for example, row in zip(self._unlabeled, logits, strict=True)
        ]
        write_training_file(file, examples)

    def _weights(self) -> dict[str, float]:
        """Returns the accuracy of each prompt on the training examples before training."""
        file = self._folder / _WEIGHTS_FILE
        if not file.exists():
            labels = [self._labels.index(str(example.label)) for example in self._train]
            model = load_model(self._config.model)
            weights: dict[str, float] = {}
            for name, prompt in self._prompts.items():
                classifier = PromptClassifier(
                    model, prompt, self._labels, max_length=self._config.max_length
                )
                predicted = classifier.logits(self._train).argmax(axis=1)
                weights[Path(name).stem] = float(np.mean(predicted == labels))
            write_json(file, weights)
        return run_folder.read_run_json(file)

    def _logits(self, member: _Member, generation: int) -> np.ndarray:
        """Returns the logits of the unlabeled texts of a trained model, float32 [texts, C]."""
        run = self._generation_folder(generation) / member.name
        file = run.with_name(f"{run.name}.npy")
        if not file.exists():
            classifier = PromptClassifier(
                load_model(run),
                self._prompts[member.prompt],
                self._labels,
                max_length=self._config.max_length,
            )
            logits = classifier.logits(self._unlabeled)
            with atomic_path(file) as partial, partial.open("wb") as stream:
                np.save(stream, logits)
        return np.load(file, allow_pickle=False)

    def _training_file(self, member: _Member, generation: int) -> Path:
        return self._generation_folder(generation) / f"{member.name}.jsonl"

    def _generation_folder(self, generation: int) -> Path:
        return self._folder / f"generation-{generation}"


def _ensemble_folder(output: Path, seed: int) -> Path:
    return output / "ensemble" / f"seed-{seed}"
