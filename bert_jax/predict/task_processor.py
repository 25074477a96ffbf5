"""Converts inputs of a fine-tuned model to token ids, and outputs of its head to predictions.

Both depend on the settings of the training run, which are read here too. `Predictor` and the server
run the model between these two steps, each in its own batches.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_jax.config.config_lib import from_json
from bert_jax.config.data import FineTuningData
from bert_jax.config.labeled_data import (
    Columns,
    FewShot,
    Glue,
    HeadTruncation,
    Snli,
    Squad,
    TaskConfig,
    TrainingFile,
    Truncation,
    WindowPooling,
)
from bert_jax.config.objectives import FineTuning
from bert_jax.config.prompts import Prompt
from bert_jax.config.sentence_embeddings import ContrastivePairs
from bert_jax.config.tuning import TuningConfig
from bert_jax.data.finetuning.example import Example, Task, TextExample
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.models.heads.config import TaskHead, class_labels
from bert_jax.predict.checks import (
    check_no_answer,
    check_pairs,
    check_sizes,
    choose_truncation,
    nonempty_examples,
)
from bert_jax.pretrained.load import LoadedModel, require_single_task, require_tokenizer
from bert_jax.runs.run_folder import DEMONSTRATIONS, SETFIT_HEAD
from bert_jax.tasks.base import AnyTaskKind, ModelInput, SequenceOutputs
from bert_jax.tasks.features import make_features
from bert_jax.tasks.registry import kind_of_head


@dataclass(frozen=True, kw_only=True)
class TrainedSettings:
    """Holds the settings of a run, or defaults for a model that does not come from a run.

    Attributes:
      objective: network and head, and how they are computed.
      max_length: maximum number of tokens in a sequence.
      window_overlap: number of tokens that neighboring windows share.
      truncation: which tokens of a long text are read.
      prompt: the template and the label words that the model was trained with, if any.
      demonstrations: the examples from which demonstrations of the prompt are drawn.
      bucket_lengths: lengths of batches.
      allow_no_answer: whether there were questions without an answer (SQuAD 2.0).
      reads_pairs: whether the classifier was trained on pairs of texts; None if that is unknown.
    """

    objective: FineTuning
    max_length: int
    window_overlap: int = FineTuningData.window_overlap
    truncation: Truncation = HeadTruncation()
    prompt: Prompt | None = None
    demonstrations: tuple[TextExample, ...] = ()
    bucket_lengths: tuple[int, ...] = FineTuningData.bucket_lengths
    allow_no_answer: bool = False
    reads_pairs: bool | None = None


def trained_settings(model: LoadedModel) -> TrainedSettings:
    """Returns the settings of a fine-tuned model.

    Raises:
      UserError: the model has no head of a task.
    """
    head = require_head(model)
    config = {} if model.run is None else model.run.config
    data = config.get("data", {})
    if data.get("type") != FineTuningData.__name__:
        max_length = max_text_length(model)
        kind = kind_of_head(head)
        if kind.num_texts == 2:
            # Windows of the full length would be unlike those that models are trained with.
            max_length = min(kind.default_seq_length, max_length)
        return TrainedSettings(
            objective=FineTuning(model=model.config, head=head), max_length=max_length
        )
    fine_tuning_data: FineTuningData = from_json(FineTuningData, data, "data")
    task, prompt = fine_tuning_data.task, fine_tuning_data.prompt
    assert model.run is not None
    return TrainedSettings(
        objective=from_json(FineTuning, config["objective"], "objective"),
        # The length of the last phase is the one with which the final evaluation was made.
        max_length=config["train"]["phases"][-1]["seq_length"],
        window_overlap=fine_tuning_data.window_overlap,
        truncation=fine_tuning_data.truncation,
        prompt=prompt,
        demonstrations=_read_demonstrations(model.run.folder)
        if prompt is not None and prompt.demonstrations is not None
        else (),
        bucket_lengths=fine_tuning_data.bucket_lengths,
        allow_no_answer=isinstance(task, Squad) and task.version == "2.0",
        reads_pairs=_reads_pairs(task),
    )


def max_text_length(model: LoadedModel) -> int:
    """Returns the number of tokens for which the model has positions besides virtual tokens."""
    if model.adapter is None:
        return model.config.max_length
    return model.config.max_length - TuningConfig(method=model.adapter).num_virtual_tokens


def save_demonstrations(folder: Path, examples: Sequence[TextExample]) -> None:
    """Saves the examples from which prediction draws demonstrations into a run folder."""
    examples_json = [{"text": e.text, "text_pair": e.text_pair, "label": e.label} for e in examples]
    write_json(folder / DEMONSTRATIONS, {"examples": examples_json})


def _read_demonstrations(folder: Path) -> tuple[TextExample, ...]:
    examples = read_json_object(folder / DEMONSTRATIONS)["examples"]
    return tuple(TextExample(id=str(index), **each) for index, each in enumerate(examples))


def _reads_pairs(task: TaskConfig) -> bool | None:
    match task:
        case Columns():
            return task.text_pair is not None
        case Glue():
            return GLUE_TASKS[task.task].text_pair is not None
        case Snli():
            return True
        case FewShot() | TrainingFile():
            return _reads_pairs(task.task)
        case _:
            return None


def require_head(model: LoadedModel) -> TaskHead:
    """Returns the head of a model; raises a UserError if it has none, or several."""
    require_single_task(model)
    if model.head is not None:
        return model.head
    if _is_setfit_run(model):
        if (Path(model.path) / SETFIT_HEAD).is_file():
            raise UserError(
                f"{model.path} is a run of `bert-jax setfit`, whose head is a logistic regression; "
                f"use SetFitClassifier(load_model({model.path!r})) of bert_jax.predict.setfit"
            )
        raise UserError(
            f"{model.path}: the run of `bert-jax setfit` was stopped before it fitted the logistic "
            "regression; run the same command again to complete it"
        )
    raise UserError(
        f"{model.path} has no head for a task, so it cannot predict; fine-tune it first: "
        f"bert-jax finetune TASK ... --model {model.path} --run FOLDER"
    )


def _is_setfit_run(model: LoadedModel) -> bool:
    train = {} if model.run is None else model.run.config.get("data", {}).get("train", {})
    return isinstance(train, dict) and train.get("type") == ContrastivePairs.__name__


TruncationName = Literal["head", "tail", "head+tail", "windows"]
"""The names in `TRUNCATIONS` of `config/labeled_data.py`, which describes them."""

_SPLIT = "test"


@dataclass(frozen=True, kw_only=True)
class PreparedInputs:
    """Holds inputs of a model with their token ids.

    Attributes:
      inputs: the inputs, as the caller gave them.
      indices: the index of each example in `inputs`; texts of white space give no example.
      examples: the inputs as examples.
      features: the token ids of the examples; a long example may be several sequences.
    """

    inputs: Sequence[ModelInput]
    indices: tuple[int, ...]
    examples: tuple[Example, ...]
    features: Features


class TaskProcessor:
    """Makes features of inputs, and decodes the outputs of the head, as the model was trained.

    Attributes:
      head: the head of the model.
      kind: the kind of task of the model.
      labels: the class names of the model, if it has any.
      tokenizer: the tokenizer of the model.
      settings: the settings of the training run.
      max_length: maximum number of tokens in a sequence.
      model_path: the path of the model, for error messages.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        truncation: TruncationName | None = None,
        window_pooling: WindowPooling | None = None,
        max_length: int | None = None,
        window_overlap: int | None = None,
        allow_no_answer: bool | None = None,
    ):
        """Reads the settings of the model; the arguments are as for `Predictor`.

        Raises:
          UserError: the model has no head or no tokenizer.
          ConfigError: a setting is out of range or does not fit the model.
        """
        self.head, self.settings = require_head(model), trained_settings(model)
        self.tokenizer, self.model_path = require_tokenizer(model), model.path
        self.kind: AnyTaskKind = kind_of_head(self.head)
        self.labels = class_labels(self.head)
        self.max_length = self.settings.max_length if max_length is None else max_length
        self._window_overlap = (
            self.settings.window_overlap if window_overlap is None else window_overlap
        )
        check_sizes(self.max_length, max_text_length(model), 1, self._window_overlap)
        if window_overlap is not None and window_overlap >= self.max_length:
            raise ConfigError(
                f"window_overlap is {window_overlap}; expected less than max_length "
                f"{self.max_length}"
            )
        check_no_answer(self.kind, allow_no_answer)
        self.truncation = choose_truncation(
            self.head, self.settings.truncation, truncation, window_pooling
        )
        self._allow_no_answer = (
            self.settings.allow_no_answer if allow_no_answer is None else allow_no_answer
        )

    def prepare(self, inputs: Sequence[ModelInput]) -> PreparedInputs:
        """Tokenizes inputs; texts of white space only are left out.

        Raises:
          UserError: a text of a tuple is empty, or an input is not what the model reads.
        """
        examples = nonempty_examples(self.kind, inputs)
        nonempty = tuple(examples.values())
        return PreparedInputs(
            inputs=inputs,
            indices=tuple(examples),
            examples=nonempty,
            features=self.make_features(nonempty),
        )

    def make_features(self, examples: tuple[Example, ...]) -> Features:
        """Tokenizes examples into sequences of at most `max_length` tokens.

        Raises:
          UserError: an example is a pair and should not be, or the reverse.
        """
        if not examples:
            return Features()
        check_pairs(examples, self.settings.reads_pairs, self.model_path)
        task = Task(
            name=self.model_path,
            kind=self.kind.name,
            labels=self.labels,
            metrics=(),
            # Demonstrations are drawn from the split "train", as in training.
            splits={_SPLIT: examples, "train": self.settings.demonstrations},
        )
        return make_features(
            task,
            _SPLIT,
            self.tokenizer,
            self.max_length,
            self._window_overlap,
            self.truncation,
            self.settings.prompt,
        )

    def decode(
        self, examples: Sequence[Example], features: Features, outputs: SequenceOutputs
    ) -> Any:
        """Returns the result of `TaskKind.decode`: a prediction for each example."""
        return self.kind.decode(
            examples, features, outputs, self.head, allow_no_answer=self._allow_no_answer
        )

    def records(
        self, prepared: PreparedInputs, outputs: Mapping[str, Sequence[np.ndarray]]
    ) -> list[dict[str, Any]]:
        """Returns the predictions as JSON objects, one for each input; see `Predictor.__call__`."""
        results = [
            # Copied, because an empty prediction may contain lists, which callers could change.
            {"text": model_input, **copy.deepcopy(dict(self.kind.empty_prediction))}
            for model_input in prepared.inputs
        ]
        if not prepared.examples:
            return results
        predictions = self.decode(prepared.examples, prepared.features, outputs)
        records = self.kind.predictions_to_json(prepared.examples, predictions, self.labels)
        for index, record in zip(prepared.indices, records, strict=True):
            results[index] = self.kind.add_input(prepared.inputs[index], record)
        return results
