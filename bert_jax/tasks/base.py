"""Defines `TaskKind`, the interface of a kind of task, from features to metrics and reports.

A kind of task is one object that knows everything in which kinds differ: how examples become model
inputs, which head and loss train on them, how head outputs are decoded into predictions, how
predictions are scored and shown, and how a user writes an input. `bert_jax/tasks/registry.py` lists
one object for each kind; the rest of the project calls its methods and never asks for its name.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from bert_jax.config.labeled_data import HeadTruncation, Truncation
from bert_jax.config.prompts import Prompt
from bert_jax.data.finetuning import example as examples_lib
from bert_jax.data.finetuning.example import Example, Task
from bert_jax.data.finetuning.features import Features
from bert_jax.errors import UserError
from bert_jax.models.heads.config import TaskHead, class_labels
from bert_jax.tasks.demonstrations import DemonstrationPool
from bert_jax.tasks.hugging_face import label_maps, read_labels
from bert_jax.tasks.long_texts import pool_windows
from bert_jax.tasks.losses import HeadSpec
from bert_jax.tasks.metrics.bootstrap import bootstrap_interval
from bert_jax.tasks.metrics.squad_decoding import PredictedAnswer
from bert_jax.text.tokenizer import Tokenizer

Json = dict[str, Any]
"""A JSON object."""

UNLABELED = "(no label)"
MAX_SHOWN_CHARACTERS = 400
"""Limit for one text of an error example in a report."""


@dataclass(frozen=True, kw_only=True)
class KindDescription:
    """Holds the texts that describe a kind of task in messages, reports and model cards.

    Attributes:
      expected_input: completes "a model for this kind reads ...".
      text_names: names of the texts of an input, for messages.
      class_table: title of the table of scores by class.
      error_loss: column title of what error examples are ranked by.
      pipeline_tag: the tag of the task on model hubs.
      head_output: completes "Output of the head: ...", in a model card.
      result: completes "With bert_jax, to get ... from texts", in a model card.
      example_arguments: arguments of `bert-jax predict` that show an input.
    """

    expected_input: str
    text_names: tuple[str, ...]
    class_table: str = "Classes"
    error_loss: str
    pipeline_tag: str
    head_output: str
    result: str
    example_arguments: str


def excerpt(text: str, center: int = 0, max_characters: int = MAX_SHOWN_CHARACTERS) -> str:
    """Cuts a text to at most `max_characters` around character `center`; "…" marks each cut."""
    if len(text) <= max_characters:
        return text
    start = max(0, min(center - max_characters // 2, len(text) - max_characters))
    prefix, suffix = "…" if start else "", "…" if start + max_characters < len(text) else ""
    return f"{prefix}{text[start : start + max_characters]}{suffix}"


def as_dicts(rows: Sequence[Any]) -> list[Json]:
    """Converts dataclass instances to JSON objects."""
    return [asdict(row) for row in rows]


ExampleT = TypeVar("ExampleT", bound=Example)
ReferencesT = TypeVar("ReferencesT", np.ndarray, list[list[str]])
PredictionsT = TypeVar("PredictionsT", np.ndarray, list[list[str]], list[PredictedAnswer])

ModelInput = str | Sequence[str] | Example
"""An input of a `Predictor`: one text, several texts in a tuple, or an example. Each kind's
`expected_input` says which of them it reads. Labels of examples are ignored."""

FileFormat = Literal["lines", "table", "conll", "squad", "swag"]
"""Formats of input files."""

SequenceOutputs = Mapping[str, Sequence[np.ndarray]]
"""Raw outputs of a head on NumPy: name -> one array for each sequence."""

Resampling = tuple[Callable[..., float], tuple[np.ndarray, ...]]
"""A metric as a function of arrays, and the arrays, whose rows are resampled together."""


@dataclass(frozen=True, kw_only=True)
class ScoredExamples:
    """Holds labeled examples of a split with their references and predictions, in equal order.

    Attributes:
      references: the result of `TaskKind.get_references`.
      predictions: the result of `TaskKind.decode`.
      labels: the class names of the task.
    """

    examples: Sequence[Any]
    references: Any
    predictions: Any
    labels: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Holds how examples become sequences; a kind reads what applies to it.

    Attributes:
      max_length: maximum number of tokens of a sequence, special tokens included.
      window_overlap: number of tokens that neighboring windows of a long example share.
      truncation: which tokens of a long text are read, for kinds that have `has_truncations`.
      prompt: the template into which texts are put, for kinds that have `reads_prompts`.
      demonstrations: where the demonstrations of the prompt are drawn from, if it has any.
    """

    max_length: int
    window_overlap: int = 128
    truncation: Truncation = HeadTruncation()
    prompt: Prompt | None = None
    demonstrations: DemonstrationPool | None = None


class TaskKind(ABC, Generic[ExampleT, ReferencesT, PredictionsT]):
    """Defines one kind of task: `ExampleT` examples with references and decoded predictions.

    Attributes:
      name: the kind in `Task.kind`, analysis.json and messages.
      head_type: config class of the head.
      spec: the batch fields, the outputs and the loss of the head.
      hugging_face_class: the end of the name of Hugging Face's class, as in BertFor...
      peft_task_type: what peft calls such a task; None if it has no name for it.
      peft_saved_modules: names of the modules that peft trains besides the adapter by default.
      description: texts for people.
      default_seq_length: sequence length if the user gives none (BERT's release).
      sequence_fields: batch field -> dims of one sequence of this kind in seqio ("L", "AL" or "").
      metric_maximum: the best value of the first metric of a task, 1 or 100.
      reads_windows: whether long examples are read whole, in overlapping windows.
      reads_pairs: whether a second text may be given with each text.
      has_truncations: whether a `Truncation` other than `HeadTruncation` can be chosen.
      reads_prompts: whether texts can be put into a prompt, whose label words the head scores.
      has_independent_labels: whether each label has a probability of its own, the sigmoid of its
        logit.
      num_texts: number of texts of an input in a list of texts; None if an input takes all.
      table_columns: input columns of a table -> default name; None if the column is optional.
      line_format: format of a text file without a known extension; None if it is ambiguous.
      table_format: format of a file with the extension of a table.
      empty_prediction: the fields of a prediction for an empty text, without "text".
      output_field: the field of a prediction that is the only output of the head; None if a head
        has several.
    """

    name: str
    head_type: type[TaskHead]
    spec: HeadSpec
    hugging_face_class: str
    peft_task_type: str | None = None
    peft_saved_modules: tuple[str, ...] = ()
    description: KindDescription
    default_seq_length: int = 128
    sequence_fields: ClassVar[Mapping[str, str]]
    metric_maximum: float = 1.0
    reads_windows: bool = False
    reads_pairs: bool = True
    has_truncations: bool = False
    reads_prompts: bool = False
    has_independent_labels: bool = False
    num_texts: int | None = 1
    table_columns: ClassVar[Mapping[str, str | None]] = {}
    line_format: FileFormat | None = "lines"
    table_format: FileFormat = "table"
    empty_prediction: ClassVar[Mapping[str, Any]]
    output_field: str | None = None

    # From examples to model inputs

    def make_head(self, labels: tuple[str, ...]) -> TaskHead:
        """Returns the head config for these class names, which only some heads have."""
        head_type: Any = self.head_type
        has_labels = any(field.name == "labels" for field in dataclasses.fields(head_type))
        return head_type(labels=labels) if has_labels else head_type()

    def head_from_hugging_face(self, data: Mapping[str, Any], source: str) -> TaskHead | None:
        """Reads the head from the content of a config.json that has `hugging_face_class`.

        Args:
          source: the file, for messages.

        Returns:
          The head; None if the file belongs to another kind with the same class.

        Raises:
          UserError: labels or a problem type that is not supported; names the field.
        """
        return self.make_head(read_labels(data, source))

    def head_to_hugging_face(self, head: Any) -> Json:
        """Returns the fields of config.json for a head; `head_from_hugging_face` reads them."""
        return label_maps(class_labels(head)) if class_labels(head) else {}

    @abstractmethod
    def make_features(
        self,
        examples: Sequence[ExampleT],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        options: FeatureOptions,
    ) -> Features:
        """Tokenizes examples; see `bert_jax.tasks.features.make_features`."""

    # From head outputs to predictions and metrics

    @abstractmethod
    def get_references(self, examples: Sequence[ExampleT], labels: Sequence[str]) -> ReferencesT:
        """Returns the labels of labeled examples in the form that `compute_metrics` takes."""

    def example_metrics(
        self, examples: Sequence[ExampleT], references: ReferencesT, predictions: PredictionsT
    ) -> dict[str, float]:
        """Computes metrics of labeled examples that need their texts; none by default."""
        return {}

    def allows_no_answer(self, task: Task) -> bool:
        """Returns whether the examples of a task show that a prediction may be "no answer"."""
        return False

    def decode(
        self,
        examples: Sequence[ExampleT],
        features: Features,
        outputs: SequenceOutputs,
        head: TaskHead,
        *,
        allow_no_answer: bool = False,
    ) -> PredictionsT:
        """Decodes head outputs into one prediction for each example.

        By default it is the only output of the head, as `pool_outputs` returns it.

        Args:
          features: the model inputs made from `examples`.
          outputs: for each name in the output of `FineTuningObjective.predict`, one array for each
            sequence of `features`.
          head: the head with its labels, and with what `fit_head` has chosen.
          allow_no_answer: whether a question may be left unanswered (SQuAD 2.0).
        """
        predictions: Any = self.pool_outputs(features, outputs)
        return predictions

    def pool_outputs(self, features: Features, outputs: SequenceOutputs) -> np.ndarray:
        """Returns the only output of the head for each example, pooled over windows of a text."""
        (name,) = self.spec.output_names
        return pool_windows(outputs, name, features)

    def mean_loss(self, references: ReferencesT, predictions: PredictionsT) -> float:
        """Returns the mean negative log-likelihood in nats, for heads that have a temperature."""
        raise NotImplementedError(f"the predictions of a {self.name} task are not calibrated")

    def fit_head(
        self,
        head: Any,
        references: ReferencesT,
        predictions: PredictionsT,
        metric: str | None = None,
    ) -> TaskHead:
        """Returns the head with what is chosen on dev after training, such as thresholds.

        By default nothing is, and it is the same object.

        Args:
          metric: the metric for which the threshold of two classes is chosen; None for no choice.
        """
        return head

    def balanced_weights(
        self, examples: Sequence[ExampleT], labels: Sequence[str]
    ) -> tuple[float, ...]:
        """Returns class weights that make all classes count equally, as scikit-learn's "balanced".

        A class without an example has the weight 1.
        """
        counts = Counter(
            name for example in examples for name in examples_lib.class_labels(example)
        )
        mean = sum(counts.values()) / len(labels)
        return tuple(mean / counts[label] if counts[label] else 1.0 for label in labels)

    def label_frequencies(
        self, examples: Sequence[ExampleT], labels: Sequence[str]
    ) -> tuple[float, ...]:
        """Returns the fraction of examples with each label, for kinds whose bias starts from it."""
        return ()

    def metrics_note(self, labels: Sequence[str]) -> str | None:
        """Returns what the names of the metrics do not say, such as the class of an F1; or None."""
        return None

    def weaknesses(self, scored: ScoredExamples) -> list[str]:
        """Returns what makes the predictions useless although the metrics look good, as sentences.

        For example: a class that is never predicted.
        """
        return []

    @abstractmethod
    def compute_metrics(
        self, references: ReferencesT, predictions: PredictionsT, labels: Sequence[str]
    ) -> dict[str, float]:
        """Computes all metrics of a split, exactly: on all examples at once, not by batches.

        Raises:
          UserError: there are no examples, predictions are not finite, or the labels of the data
            are not the model's.
        """

    @abstractmethod
    def resampling(
        self, metric: str, references: ReferencesT, predictions: PredictionsT
    ) -> Resampling | None:
        """Returns how one metric is computed from arrays; None if it has no interval."""

    def metric_interval(
        self,
        metric: str,
        references: ReferencesT,
        predictions: PredictionsT,
        labels: Sequence[str],
        *,
        n_resamples: int = 1000,
        seed: int = 0,
    ) -> tuple[float, float]:
        """Computes the 95 % bootstrap interval (low, high) of one metric over the examples.

        Raises:
          UserError: as `compute_metrics`, or the metric is unknown or has no interval.
        """
        # Check the inputs first: metrics that are resampled skip the checks, for speed.
        metrics = self.compute_metrics(references, predictions, labels)
        resampling = None
        if metric in metrics:
            resampling = self.resampling(metric, references, predictions)
        if resampling is None:
            raise UserError(
                f"there is no confidence interval for the metric {metric!r} of a {self.name} task; "
                f"its metrics are {', '.join(metrics)}"
            )
        score, arrays = resampling
        return bootstrap_interval(score, *arrays, n_resamples=n_resamples, seed=seed)

    @abstractmethod
    def prediction_to_json(self, example: ExampleT, prediction: Any, labels: Sequence[str]) -> Json:
        """Converts the prediction for one example, an item of `PredictionsT`, to JSON values."""

    def predictions_to_json(
        self, examples: Sequence[ExampleT], predictions: PredictionsT, labels: Sequence[str]
    ) -> list[Json]:
        """Converts predictions to JSON values, each with the id of its example."""
        return [
            {"id": example.id, **self.prediction_to_json(example, prediction, labels)}
            for example, prediction in zip(examples, predictions, strict=True)
        ]

    # Reports

    @abstractmethod
    def analysis_tables(self, scored: ScoredExamples) -> Json:
        """Returns the tables of a split's analysis; see `bert_jax.tasks.analysis.analyze`."""

    @abstractmethod
    def error_losses(self, references: ReferencesT, predictions: PredictionsT) -> np.ndarray:
        """Returns float64 [n]: how wrong each prediction is, 0 for a correct one."""

    @abstractmethod
    def error_to_json(self, scored: ScoredExamples, index: int) -> Json:
        """Describes a wrong prediction for a reader.

        Returns:
          {"texts": {name: text}, "reference", "predicted"}, and "probability" of the prediction
          if the head gives one.
        """

    # Data inspection

    @abstractmethod
    def count_keys(self, example: ExampleT) -> list[str]:
        """Returns the names under which one example counts in a table of label counts."""

    @abstractmethod
    def format_label(self, example: ExampleT) -> str:
        """Formats the label of one example as it was read, `UNLABELED` if there is none."""

    @abstractmethod
    def overlap_key(self, example: ExampleT) -> Hashable:
        """Returns a key that is equal for examples with the same text, ignoring case."""

    # Inputs of a predictor

    @abstractmethod
    def parse_input(self, model_input: ModelInput, example_id: str) -> ExampleT | None:
        """Converts an input to an unlabeled example; None if it is not an input of this kind."""

    @abstractmethod
    def input_texts(self, example: ExampleT) -> Sequence[str]:
        """Returns the texts of an example, none of which may be empty."""

    def example_from_input(self, model_input: ModelInput, example_id: str) -> ExampleT:
        """Converts an input to an unlabeled example; `example_id` is for inputs without an id.

        Raises:
          UserError: a text in it is empty, or this kind does not read such inputs.
        """
        example = self.parse_input(model_input, example_id)
        if example is None:
            raise UserError(
                f"{_shorten(model_input)}: a model for {self.name} reads "
                f"{self.description.expected_input}"
            )
        # An empty text is often a bug of the caller; its prediction would look like any other.
        if not all(_is_nonempty_text(text) for text in self.input_texts(example)):
            raise UserError(
                f"{_shorten(model_input)}: a text is empty; expected text to predict on"
            )
        return example

    @abstractmethod
    def input_to_json(self, model_input: Sequence[str]) -> Json:
        """Names the texts of an input that is a tuple of texts, to show next to its prediction."""

    def add_input(self, model_input: ModelInput, prediction: Mapping[str, Any]) -> Json:
        """Adds to a prediction the text that it is for, or the id if the input was an example."""
        # The id was made up for inputs that have none.
        result = {key: value for key, value in prediction.items() if key != "id"}
        if isinstance(model_input, str):
            return {"text": model_input, **result}
        if isinstance(model_input, Example):
            return {"id": model_input.id, **result}
        return {**self.input_to_json(model_input), **result}


AnyTaskKind = TaskKind[Any, Any, Any]
"""A kind as the registry returns it: which examples and predictions it has is known at run time."""


def _is_nonempty_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _shorten(model_input: ModelInput) -> str:
    text = repr(model_input)
    return text if len(text) <= 100 else f"{text[:97]}..."
