"""Holds what the training functions of the Python API return: a run, and what one does with it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.api.tables import table_file
from bert_jax.cli import export
from bert_jax.config.labeled_data import Columns
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError
from bert_jax.io.json_io import read_json_object
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import AnyModel, load_model
from bert_jax.runs.run_folder import EVALUATION, REPORT


class TrainedModel:
    """Is a model that was trained in a run folder; it is loaded when it is first used.

    Attributes:
      folder: the run folder, which every command of `bert-jax` takes as a model.
      complete: False if Ctrl-C or SIGTERM stopped the run after a checkpoint was saved; the same
        call with the same `run` resumes it.
    """

    def __init__(self, folder: Path, *, complete: bool):
        self.folder, self.complete = folder, complete

    def __repr__(self) -> str:
        """Returns one line with the folder and the first metrics of the final evaluation."""
        metrics = self.metrics.get("dev", self.metrics)  # those of pretraining have no split
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, dict)}
        values = [f"{name}={value:.4g}" for name, value in list(numbers.items())[:3]]
        state = "" if self.complete else "stopped before its end"
        return f"<{type(self).__name__} {' '.join([str(self.folder), *values, state]).rstrip()}>"

    @property
    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the final evaluation by split; {} without an evaluation."""
        file = self.folder / EVALUATION
        return read_json_object(file) if file.is_file() else {}

    @property
    def report(self) -> Path:
        """Returns the path of the report, a page with curves, tables and errors."""
        return self.folder / REPORT

    @cached_property
    def model(self) -> AnyModel:
        """Returns the model with its best or newest parameters."""
        return load_model(self.folder)

    def export(self, output: str | Path, **flags: Any) -> Path:
        """Writes the model as a Hugging Face folder and returns its path.

        Args:
          output: the new folder.
          flags: the flags of `bert-jax export`, such as `onnx="int8"` or `adapter=True`.

        Raises:
          UserError: the folder is not empty or cannot be written.
        """
        arguments = export.Arguments(run_folder=str(self.folder), output=str(output), **flags)
        export.run(arguments)
        return Path(output)


class FineTunedModel(TrainedModel):
    """Is a model for a task: `predict` takes texts, `evaluate` labeled examples.

    Attributes:
      columns: the columns of the table it was trained on; None if it was trained on another task.
    """

    def __init__(self, folder: Path, *, complete: bool, columns: Mapping[str, Any] | None):
        super().__init__(folder, complete=complete)
        self.columns = columns

    @cached_property
    def predict(self) -> Predictor:
        """Predicts: `predict("A text.")`, or `predict([...])` for many; see `Predictor`."""
        return Predictor(self.model)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Computes the metrics of labeled examples, such as {"accuracy": 0.91, ...}.

        Args:
          data: a table or path with the columns of the training data.

        Raises:
          UserError: a column or label is missing, or a label is not one of the model's.
        """
        if self.columns is None:
            raise ConfigError(
                "the model was not trained on a table; use `bert-jax evaluate`, or load_task and "
                "predict.evaluate"
            )
        file = table_file(data, self.folder / "data", "evaluated")
        return self.predict.evaluate(load_task(Columns(test=file, **self.columns)), "test")


class TrainedEmbedder(TrainedModel):
    """Is a sentence encoder: `embed` returns the vectors of texts."""

    @cached_property
    def _embedder(self) -> Embedder:
        return Embedder(self.model)

    def embed(self, texts: str | Sequence[str]) -> np.ndarray:
        """Returns the vector of a text, float32 [E], or of several, float32 [N, E]."""
        return self._embedder(texts)
