"""Provides the batches of a run that trains a sentence encoder, and evaluates it on dev pairs."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.experiment import Experiment
from bert_jax.config.sentence_embeddings import (
    SentenceEmbedding,
    SentenceEmbeddingData,
    UnsupervisedSimCSE,
    has_in_batch_negatives,
    single_loss,
    teacher_path,
)
from bert_jax.config.train import LabeledEval
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import evaluation_batches, gather_outputs
from bert_jax.data.sentence_embeddings.loader import SentenceEmbeddingLoader
from bert_jax.data.sentence_embeddings.text_groups import (
    TextGroups,
    group_features,
    read_text_groups,
    text_ids,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import atomic_path, write_json
from bert_jax.objectives.base import Objective
from bert_jax.objectives.sentence_embeddings.objective import SentenceEmbeddingObjective
from bert_jax.parallel import sharding
from bert_jax.params.functional import Params
from bert_jax.pretrained.initial import check_initial_tokenizer
from bert_jax.runs import run_folder
from bert_jax.runs.messages import log_truncation
from bert_jax.tasks.metrics.regression import regression_metrics
from bert_jax.tasks.metrics.vectors import normalize_vectors
from bert_jax.text.compatibility import (
    Tokenization,
    check_embedding_rows,
    check_input_template,
    check_pad_token_id,
)
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.train.sources.sentence_targets import loss_targets, prepare_groups, teacher_targets

DEV = "dev"


class SentenceEmbeddingSource:
    """Implements `Source` for an experiment with `SentenceEmbeddingData`."""

    def __init__(self, experiment: Experiment, data: SentenceEmbeddingData):
        """Reads the groups of texts.

        Raises:
          UserError: a file is missing or damaged, or its groups are not what the loss needs.
          ConfigError: the objective is not `SentenceEmbedding`, or is SimCSE without dropout.
        """
        if not isinstance(experiment.objective, SentenceEmbedding):
            raise ConfigError(
                f"data is SentenceEmbeddingData, but objective is "
                f"{type(experiment.objective).__name__}; expected SentenceEmbedding"
            )
        _check_dropout(experiment.objective, experiment)
        self._experiment, self._data = experiment, data
        self._config = experiment.objective
        self._tokenizer = load_tokenizer(data.tokenizer)
        self._groups = prepare_groups(read_text_groups(data.train), self._config.loss)
        self._dev = read_text_groups(data.dev) if data.dev is not None else None
        path = teacher_path(self._config.loss)
        self._targets = {} if path else loss_targets(self._groups, self._config.loss)
        self._features = functools.cache(self._make_features)

    def prepare_run_folder(self, folder: Path) -> None:
        """Checks the tokenizer against the model and saves it; see `Source`."""
        path, model = self._data.tokenizer, self._config.model
        tokenization = Tokenization.of(self._tokenizer, path)
        remedy = "set data.tokenizer to {tokenizer}"
        check_initial_tokenizer(self._experiment, folder, tokenization, remedy)
        advice = "use the tokenizer of the model"
        check_embedding_rows(tokenization.vocab_size, model.vocab_size, path, advice)
        check_input_template(self._tokenizer, model.type_vocab_size, path)
        check_pad_token_id(self._tokenizer, model.required_pad_token_id, path)
        if not (folder / TOKENIZER_FOLDER).exists():
            with atomic_path(folder / TOKENIZER_FOLDER) as partial_folder:
                self._tokenizer.save(partial_folder)

    def data_fingerprint(self) -> str:
        """Returns a hash of the training texts with their scores or labels."""
        return self._groups.fingerprint()

    def describe_data(self) -> dict[str, str]:
        """Returns the names of the training and dev data, with their numbers of examples."""
        groups = {"Training data": self._groups, "Dev data": self._dev}
        return {
            name: f"{each.name}: {len(each.texts):,} examples of {each.num_texts} texts"
            for name, each in groups.items()
            if each is not None
        }

    def on_train_start(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path
    ) -> None:
        """Computes the teacher's vectors of all texts, if the loss has a teacher."""
        if path := teacher_path(self._config.loss):
            self._targets = teacher_targets(self._groups, self._config, path)

    def batch_fields(self, objective: Objective) -> tuple[str, ...]:
        """Returns the fields that the objective reads; see `Source`."""
        return objective.batch_fields()

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one shape for each length that a batch of the phase has; see `Source`."""
        phase, size = self._experiment.train.phases[phase_index], self._config.embedding_size
        sizes = {"B": phase.batch_size, "A": self._groups.num_texts, "D": size}
        lengths = self.make_loader(phase_index).distinct_batch_lengths(phase.steps)
        return [{**sizes, "L": length} for length in lengths]

    @contextlib.contextmanager
    def loader(self, phase_index: int, position: int) -> Generator[SentenceEmbeddingLoader]:
        """Opens the training loader; see `Source`."""
        yield self.make_loader(phase_index, position)

    def make_loader(self, phase_index: int, position: int = 0) -> SentenceEmbeddingLoader:
        """Returns the batches of a phase from `position`."""
        phase = self._experiment.train.phases[phase_index]
        ids = text_ids(self._groups) if has_in_batch_negatives(self._config.loss) else None
        return SentenceEmbeddingLoader(
            self._features(phase.seq_length),
            ids,
            self._data.batch_lengths(phase.seq_length),
            batch_size=phase.batch_size,
            seed=self._experiment.seed + phase_index,
            pad_id=self._tokenizer.pad_id,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            start=position,
        )

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> "SimilarityEvaluator | None":
        """Returns the evaluator of the dev pairs; see `Source`."""
        evaluation = self._experiment.train.evaluation
        if not isinstance(evaluation, LabeledEval):
            return None
        if self._dev is None or evaluation.split != DEV:
            raise ConfigError(
                f"train.evaluation.split is {evaluation.split!r} and data.dev is {self._data.dev}; "
                "expected 'dev' and pairs with scores, or set train.evaluation to null"
            )
        assert isinstance(objective, SentenceEmbeddingObjective)
        sharding.check_batch_size(evaluation.batch_size, 1, mesh)
        seq_length = self._experiment.train.phases[phase_index].seq_length
        return SimilarityEvaluator(
            objective,
            self._dev,
            group_features(_flat(self._dev), self._tokenizer, seq_length),
            self._data.batch_lengths(seq_length),
            batch_size=evaluation.batch_size,
            pad_id=self._tokenizer.pad_id,
            mesh=mesh,
        )

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Writes the correlations of the dev pairs, computed with the best parameters."""
        evaluator = self.evaluator(objective, len(self._experiment.train.phases) - 1, mesh)
        if evaluator is None:
            return
        metrics = {DEV: evaluator(params)}
        if jax.process_index() == 0:
            write_json(folder / run_folder.EVALUATION, metrics)

    def _make_features(self, seq_length: int) -> Features:
        features = group_features(self._groups, self._tokenizer, seq_length)
        groups = self._groups
        log_truncation(groups.name, features.num_truncated, len(groups.texts), seq_length)
        features.targets.update(self._targets)
        return features


def _check_dropout(objective: SentenceEmbedding, experiment: Experiment) -> None:
    """Raises a ConfigError if the two vectors of a text in `UnsupervisedSimCSE` would be equal."""
    if not isinstance(single_loss(objective.loss), UnsupervisedSimCSE):
        return
    names = [f.name for f in dataclasses.fields(objective.model) if "dropout" in f.name]
    rates = [getattr(objective.model, name) for name in names]
    rates.append(getattr(experiment.train.tuning.adapter, "dropout", 0.0))
    if not any(rates):
        raise ConfigError(
            "UnsupervisedSimCSE needs dropout, which makes the two vectors of a text different, "
            f"but all dropout rates of the model are 0 ({', '.join(names)}); set one, such as "
            "objective.model.hidden_dropout_prob=0.1, or choose another --loss"
        )


@functools.lru_cache(maxsize=4)
def _jitted_embed(
    objective: SentenceEmbeddingObjective, mesh: jax.sharding.Mesh
) -> Callable[..., jax.Array]:
    """Compiles `embed` once for all evaluations of a run with batches of the same length."""
    # Replicated outputs give every process all vectors, so that all compute the same metrics.
    return jax.jit(objective.embed, out_shardings=sharding.replicated(mesh))


class SimilarityEvaluator:
    """Evaluates vectors by the rank correlation of cosines and scores; compiles once a length.

    Args:
      pairs: pairs of texts with scores.
      features: the texts of all pairs as single sequences: first, second, first, second, ...
    """

    def __init__(
        self,
        objective: SentenceEmbeddingObjective,
        pairs: TextGroups,
        features: Features,
        bucket_lengths: Sequence[int],
        *,
        batch_size: int,
        pad_id: int,
        mesh: jax.sharding.Mesh,
    ):
        if pairs.scores is None:
            raise UserError(f"{pairs.name} has no scores; expected pairs of texts with scores")
        self._scores, self._features = pairs.scores, features
        self._bucket_lengths, self._batch_size, self._pad_id = bucket_lengths, batch_size, pad_id
        self._sharding = sharding.batch_sharding(mesh)
        self._embed = _jitted_embed(objective, mesh)

    @property
    def known_metrics(self) -> Sequence[str]:
        """Returns the names of the correlations."""
        return ("spearman", "pearson")

    def __call__(self, params: Params) -> dict[str, float]:
        """Computes Spearman's and Pearson's correlation of the cosines with the scores."""
        batches = evaluation_batches(
            self._features,
            self._bucket_lengths,
            batch_size=self._batch_size,
            pad_id=self._pad_id,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        outputs = ((indices, self._vectors(params, batch)) for indices, batch in batches)
        vectors = np.stack(gather_outputs(outputs, len(self._features))["vectors"])
        vectors = normalize_vectors(vectors)
        cosines = np.sum(vectors[0::2] * vectors[1::2], axis=-1)
        metrics = regression_metrics(self._scores, cosines)
        return {name: metrics[name] for name in self.known_metrics}

    def _vectors(self, params: Params, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        fields = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
        vectors = self._embed(params, sharding.put_batch(fields, self._sharding))
        return {"vectors": np.asarray(jax.device_get(vectors))}


def _flat(pairs: TextGroups) -> TextGroups:
    """Returns the texts of all pairs one after another, as groups of one text."""
    return TextGroups(name=pairs.name, texts=[(text,) for pair in pairs.texts for text in pair])
