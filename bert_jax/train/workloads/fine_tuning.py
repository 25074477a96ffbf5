"""Provides the data of a fine-tuning run: training batches, evaluation and predictions."""

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.data import FineTuningData
from bert_jax.config.distillation import SoftLabels
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Windows
from bert_jax.config.objectives import FineTuning
from bert_jax.config.train import LabeledEval
from bert_jax.config.tuning import TuningConfig
from bert_jax.data.corpus.contamination.found_items import ITEMS_FILE, FoundItems, copy_items
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.data.finetuning.example import Task, is_labeled
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import FineTuningLoader
from bert_jax.data.finetuning.readers.load_task import has_soft_labels, load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import atomic_write, write_json
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import (
    TaskHead,
    WindowEncoder,
    class_labels,
    label_thresholds,
    reads_one_vector,
    window_encoder_of,
)
from bert_jax.models.longformer.attention import count_global_tokens
from bert_jax.objectives.base import Objective
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.parallel import sharding
from bert_jax.predict.task_processor import save_demonstrations
from bert_jax.pretrained.base_model import save_fitted_heads
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.runs import run_folder
from bert_jax.runs.messages import log_truncation
from bert_jax.runs.training_data import examples_fingerprint
from bert_jax.tasks.analysis import (
    analyze,
    describe_task,
    evaluation_warnings,
    format_groups,
    metrics_by_group,
)
from bert_jax.tasks.calibration import FittedHead
from bert_jax.tasks.features import make_features, text_examples, training_features
from bert_jax.tasks.ranking import max_texts_per_query
from bert_jax.tasks.registry import head_for_data, kind_of
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.train.workloads.base import Workload, distinct_token_ids
from bert_jax.train.workloads.feature_cache import (
    ENCODER_FEATURES,
    FeatureExtractor,
    cache_features,
)
from bert_jax.train.workloads.task_evaluator import TaskEvaluator

logger = logging.getLogger(__name__)


class FineTuningWorkload(Workload):
    """Fine-tunes a model on one task."""

    next_command = "bert-jax predict {run} --file FILE, or bert-jax export {run} --output exported"

    def __init__(self, experiment: Experiment, data: FineTuningData, objective: FineTuning):
        """Reads the task.

        Raises:
          UserError: its files are missing or damaged, or it has nothing to train on.
          ConfigError: the objective does not have the head of the task, or does not fit the tuning.
        """
        super().__init__(experiment)
        self._data, self._objective_config = data, objective
        self._tokenizer = load_tokenizer(data.tokenizer)
        self._task = load_task(data.task)
        if jax.process_index() == 0:
            for note in self._task.notes:
                logger.info("note: %s", note)
        self._features = functools.cache(self._make_features)
        train = self._task.splits.get("train", ())
        if not train or not all(is_labeled(example) for example in train):
            problem = "has unlabeled training examples" if train else "has no training examples"
            raise UserError(
                f"the task {self._task.name} {problem}; expected a file of labeled examples for "
                "the split train"
            )
        _check_task(self._task, data, objective, self._tokenizer)
        _check_tuning(data, objective, experiment.train.tuning)

    def prepare_run_folder(self, folder: Path) -> None:
        """Checks the tokenizer against the model and saves it; see `Workload`."""
        model, is_new = self._objective_config.model, not (folder / TOKENIZER_FOLDER).exists()
        self._check_and_save_tokenizer(self._tokenizer, self._data.tokenizer, model, folder)
        # A run that is resumed has a copy of what it needs; its initial model may be gone.
        if is_new and self._experiment.init_from and not (folder / ITEMS_FILE).is_file():
            copy_items([resolve_model_folder(self._experiment.init_from)], folder)
        if self._data.prompt and self._data.prompt.demonstrations:
            save_demonstrations(folder, text_examples(self._task, "train"))

    def data_fingerprint(self) -> str:
        """Returns a hash of the training examples."""
        return examples_fingerprint(self._task.splits["train"])

    def describe_data(self) -> dict[str, str]:
        """Returns the name of the task with the number of examples of each split."""
        splits = ", ".join(f"{len(rows):,} {split}" for split, rows in self._task.splits.items())
        return {"Task": f"{self._task.name}: {splits} examples"}

    def training_token_ids(self) -> np.ndarray | None:
        """Returns the token ids of all training sequences, and special ones; see `Workload`."""
        if self._data.prompt and self._data.prompt.demonstrations:
            return None  # they are drawn in every epoch
        features = [self.train_features(index) for index in range(len(self._phases))]
        return distinct_token_ids(self._tokenizer, *(each.input_ids for each in features))

    def on_train_start(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path
    ) -> None:
        """Computes and caches the encoder features of all splits, if the tuning asks for it."""
        train = self._experiment.train
        if train.tuning.features != "cached":
            return
        assert isinstance(objective, FineTuningObjective)
        # Phases may have other lengths, and the features of a token depend on what was truncated.
        lengths = sorted({phase.seq_length for phase in train.phases})
        extractor = FeatureExtractor(
            objective,
            params,
            mesh,
            bucket_lengths=self._data.batch_lengths(lengths[-1]),
            batch_size=self._eval_batch_size(mesh),
            pad_id=self._tokenizer.pad_id,
        )
        splits = {f"{s}-{n}": self._features(s, n) for n in lengths for s in self._task.splits}
        cache_features(extractor, splits, folder / ENCODER_FEATURES)

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one shape for each batch length that occurs; see `Workload`."""
        batch_size = self._phases[phase_index].batch_size
        num_choices = self.train_features(phase_index).num_choices
        sizes = {"B": batch_size, "A": num_choices, "D": self._objective_config.model.hidden_size}
        sizes |= {"C": len(self._task.labels)}
        return [{**sizes, "L": n} for n in self._loader(phase_index, 0).distinct_batch_lengths()]

    @contextlib.contextmanager
    def loader(self, phase_index: int, position: int) -> Generator[FineTuningLoader]:
        """Opens the training loader; see `Workload`."""
        yield self._loader(phase_index, position)

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> TaskEvaluator | None:
        """Returns the evaluator of the split that the config names; see `Workload`."""
        evaluation = self._evaluation
        if not isinstance(evaluation, LabeledEval):
            return None
        if evaluation.split not in self._task.splits:
            available_splits = ", ".join(self._task.splits)
            raise ConfigError(
                f"train.evaluation.split is {evaluation.split!r}, but {self._task.name} has the "
                f"splits {available_splits}; add a file for it, or set train.evaluation to null"
            )
        return self._split_evaluator(objective, evaluation.split, phase_index, mesh)

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Writes predictions, metrics and an analysis of every split except "train"."""
        found_items = FoundItems.read(folder) if (folder / ITEMS_FILE).is_file() else None
        metrics, analysis, fitted = self.evaluate_splits(
            objective, params, mesh, folder / run_folder.PREDICTIONS, step, found_items
        )
        if jax.process_index() == 0:
            save_fitted_heads(folder, step, {"": fitted})
            if metrics and (note := kind_of(self._task).metrics_note(self._task.labels)):
                logger.info("note: %s", note)
            write_json(folder / run_folder.EVALUATION, metrics)
            write_json(folder / run_folder.ANALYSIS, analysis)

    def evaluate_splits(
        self,
        objective: Objective,
        params: Any,
        mesh: jax.sharding.Mesh,
        predictions_folder: Path,
        step: int,
        found_items: FoundItems | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], FittedHead]:
        """Evaluates every split except "train" and writes the predictions for their examples.

        What a head lets choose after training, such as thresholds, is chosen on "dev", and all
        splits are evaluated with it. So is the temperature, if the config asks for it.

        Args:
          found_items: the examples that are in the pretraining corpus, if that is known; the
            analysis then has the metrics on these and on the others.

        Returns:
          (metrics by split, analysis of the task, head with what was chosen), the analyses of
          splits on process 0 only.
        """
        last_phase_index = len(self._phases) - 1
        # Predictions are computed on all processes, because the devices are shared, but only
        # process 0 writes files and analyses.
        metrics, split_analyses = {}, {}
        fitted = FittedHead(head=self._objective_config.head)
        evaluation = self._evaluation
        calibrate = isinstance(evaluation, LabeledEval) and evaluation.calibrate
        best_metric = self._experiment.train.checkpoints.best_metric
        predictions_folder.mkdir(parents=True, exist_ok=True)
        evaluated = [split for split in self._task.splits if split != "train"]
        for split in sorted(evaluated, key=lambda split: split != "dev"):
            evaluator = self._split_evaluator(objective, split, last_phase_index, mesh)
            result = evaluator.evaluate(
                params,
                fitted,
                fit_head=split == "dev",
                calibrate=calibrate,
                threshold_metric=best_metric if calibrate else None,
            )
            fitted = result.fitted
            if result.metrics:
                metrics[split] = result.metrics
            if jax.process_index() == 0:
                if result.metrics:
                    if calibrate and split == "dev":
                        _log_calibration(fitted, result.metrics, best_metric)
                    split_analyses[split] = analyze(
                        self._task,
                        self._task.splits[split],
                        result.predictions,
                        result.metrics,
                        result.uncalibrated,
                    )
                    for warning in evaluation_warnings(self._task, split, result.predictions):
                        logger.warning("warning: %s: %s", split, warning)
                if result.metrics and found_items is not None:
                    by_group = self._metrics_by_group(split, result.predictions, found_items)
                    split_analyses[split]["by_contamination"] = by_group
                lines = "".join(json.dumps(row) + "\n" for row in result.prediction_records)
                atomic_write(predictions_folder / f"{split}.jsonl", lines)
        task_description = {
            **describe_task(self._task),
            "train_sequences": len(self.train_features(last_phase_index)),
        }
        if fitted.temperature != 1:
            task_description["temperature"] = fitted.temperature
        return metrics, {**task_description, "step": step, "splits": split_analyses}, fitted

    def _metrics_by_group(
        self, split: str, predictions: Any, found_items: FoundItems
    ) -> dict[str, dict[str, Any]]:
        """Computes and logs the metrics of the examples that are in the pretraining corpus."""
        groups = found_items.groups(self._task, split)
        by_group = metrics_by_group(self._task, split, predictions, groups)
        metric = self._task.metrics[0]
        text = format_groups(by_group, metric)
        logger.info("%s, %s by what the pretraining corpus contains: %s", split, metric, text)
        return by_group

    def train_features(self, phase_index: int) -> Features:
        """Returns the training sequences of a phase."""
        return self._features("train", self._phases[phase_index].seq_length)

    def _make_features(self, split: str, seq_length: int) -> Features:
        data = self._data
        arguments = self._tokenizer, seq_length, data.window_overlap, data.truncation, data.prompt
        if split == "train":
            features = training_features(self._task, *arguments)
        else:
            features = make_features(self._task, split, *arguments)
        num_examples = len(self._task.splits[split])
        name = f"{self._task.name} {split}"
        log_truncation(name, features.num_truncated, num_examples, seq_length)
        objective = self._objective_config
        warn_of_local_tokens(name, objective.model, objective.head, features.input_ids)
        return features

    def _loader(self, phase_index: int, position: int) -> FineTuningLoader:
        phase_config = self._phases[phase_index]
        return FineTuningLoader(
            self.train_features(phase_index),
            self._data.batch_lengths(phase_config.seq_length),
            batch_size=phase_config.batch_size,
            # Each phase has its own order of examples; otherwise the first epoch of every phase
            # would be the same.
            seed=self._seed + phase_index,
            pad_id=self._tokenizer.pad_id,
            texts_per_query=self._texts_per_query(phase_config.batch_size),
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            start=position,
        )

    def _texts_per_query(self, batch_size: int) -> int | None:
        """Returns the most training texts of a query for a listwise loss; None for other losses."""
        if self._objective_config.listwise_loss is None:
            return None
        return max_texts_per_query(self._task, batch_size)

    def _split_evaluator(
        self, objective: Objective, split: str, phase_index: int, mesh: jax.sharding.Mesh
    ) -> TaskEvaluator:
        assert isinstance(objective, FineTuningObjective)
        seq_length = self._phases[phase_index].seq_length
        return TaskEvaluator(
            objective,
            self._task,
            split,
            self._features(split, seq_length),
            self._data.batch_lengths(seq_length),
            batch_size=self._eval_batch_size(mesh),
            pad_id=self._tokenizer.pad_id,
            mesh=mesh,
        )

    def _eval_batch_size(self, mesh: jax.sharding.Mesh) -> int:
        """Returns the batch size for evaluation and feature extraction."""
        batch_size = (self._evaluation or LabeledEval()).batch_size
        sharding.check_batch_size(batch_size, 1, mesh)
        return batch_size


def _log_calibration(
    fitted: FittedHead, metrics: Mapping[str, float], best_metric: str | None
) -> None:
    if fitted.temperature == 1:
        logger.warning(
            "warning: no temperature could be fitted on dev: its loss has no minimum (every "
            "prediction is correct, or the logits are no better than chance), so probabilities are "
            "not calibrated; a larger dev set may help"
        )
    else:
        logger.info(
            "temperature %.4f, fitted on dev: loss %.4f, before %.4f",
            fitted.temperature,
            metrics["loss"],
            metrics["loss_uncalibrated"],
        )
    if f"{best_metric}_at_0.5" in metrics:
        logger.info(
            "threshold of %r %.4f, chosen on dev: %s %.4f, with 0.5 %.4f",
            class_labels(fitted.head)[1],
            label_thresholds(fitted.head)[1],
            best_metric,
            metrics[str(best_metric)],
            metrics[f"{best_metric}_at_0.5"],
        )


def _check_task(
    task: Task, data: FineTuningData, objective: FineTuning, tokenizer: Tokenizer
) -> None:
    """Checks that the objective has the head and the labels of the task.

    Raises:
      ConfigError: the head is another one, or the training examples have soft labels and the
        objective is not trained on such, or the reverse.
    """
    head = objective.head
    required_head = head_for_data(task, data, tokenizer)
    if _without_num_layers(required_head) != _without_num_layers(head):
        raise ConfigError(
            f"objective.head is {head}, but the task {task.name} with data.truncation "
            f"{data.truncation} and data.prompt {data.prompt} needs {required_head}"
        )
    if objective.listwise_loss is not None and isinstance(data.truncation, Windows):
        raise ConfigError(
            f"objective.listwise_loss (--loss) is {objective.listwise_loss!r}, which compares "
            "texts, but data.truncation is 'windows', which trains on their parts; expected "
            "another --truncation"
        )
    if isinstance(objective.distillation, SoftLabels) != has_soft_labels(task):
        found = "soft labels" if has_soft_labels(task) else "no soft labels"
        raise ConfigError(
            f"objective.distillation is {objective.distillation}, but the training examples of "
            f"{task.name} have {found}; expected SoftLabels for soft labels only"
        )


def _check_tuning(data: FineTuningData, objective: FineTuning, tuning: TuningConfig) -> None:
    """Raises a ConfigError if prompt, soft labels or pooling cannot be combined with the tuning."""
    cached = tuning.features == "cached"
    if data.prompt and (tuning.num_virtual_tokens or cached):
        raise ConfigError(
            f"data.prompt is set, and train.tuning has the method {tuning.method} and the "
            f"features {tuning.features}; expected no virtual tokens, which would move the "
            "mask, and 'computed', because the cached ones do not belong to the mask"
        )
    if isinstance(objective.distillation, SoftLabels) and cached:
        raise ConfigError(
            "train.tuning.features is 'cached' and objective.distillation is SoftLabels; "
            "expected 'computed'"
        )
    pooling = objective.model.sequence_pooling
    if cached and pooling == "late" and reads_one_vector(objective.head):
        raise ConfigError(
            "train.tuning.features is 'cached', but objective.model.classifier_pooling is "
            "'late', which pools after a trained layer; set classifier_pooling to "
            "'mean', or features to 'computed'"
        )


def _without_num_layers(head: TaskHead) -> TaskHead:
    """Sets the number of layers over windows, which the data does not determine, to the default."""
    windows = window_encoder_of(head)
    if windows is None:
        return head
    return dataclasses.replace(head, window_encoder=WindowEncoder(num_windows=windows.num_windows))


def warn_of_local_tokens(
    split: str, model: TransformerConfig, head: TaskHead, input_ids: Sequence[np.ndarray]
) -> None:
    """Warns of sequences with more tokens to attend globally than the model allows, if any has.

    Args:
      split: the task and its split, such as "squad train".
      input_ids: the token ids of each sequence, without padding.
    """
    tokens, limit = model.global_tokens(head), model.global_token_limit
    if tokens is None or limit is None or jax.process_index() != 0:
        return
    counts = np.array([count_global_tokens(tokens, ids) for ids in input_ids], np.int64)
    if num_sequences := int((counts > limit).sum()):
        logger.warning(
            "%s: %s sequences have up to %s tokens that should have global attention; those after "
            "the first %s have local attention; set model.max_global_tokens to change that number",
            split,
            f"{num_sequences:,}",
            f"{counts.max():,}",
            f"{limit:,}",
        )
