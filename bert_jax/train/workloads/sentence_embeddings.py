"""Provides the batches of a run that trains a sentence encoder, and evaluates it on dev pairs."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.batch import PACKED_TOKENS
from bert_jax.config.embedding_losses import (
    AnglELoss,
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    DenoisingAutoEncoderLoss,
    EmbedDistillLoss,
    GISTEmbedLoss,
    MaxSimRankingLoss,
    MSELoss,
    MultipleNegativesRankingLoss,
    SentenceLoss,
    SingleLoss,
    SoftmaxLoss,
    SpladeLoss,
    SupervisedSimCSE,
    TripletLoss,
    UnsummedLoss,
    UnsupervisedSimCSE,
    compares_examples,
    distillation_loss,
    has_in_batch_negatives,
    single_loss,
    teacher_path,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.sentence_embeddings import SentenceEmbedding, SentenceEmbeddingData
from bert_jax.config.train import LabeledEval
from bert_jax.config.tuning import TuningConfig
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import evaluation_batches, fit_bucket_lengths, gather_outputs
from bert_jax.data.sentence_embeddings.loader import SentenceEmbeddingLoader, WordDeletion
from bert_jax.data.sentence_embeddings.text_groups import (
    TextGroups,
    group_features,
    max_text_lengths,
    read_text_groups,
    repeated_texts,
    single_texts,
    text_ids,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.objectives.base import Objective
from bert_jax.objectives.sentence_embeddings import SentenceEmbeddingObjective
from bert_jax.parallel import sharding
from bert_jax.params.functional import Params
from bert_jax.pretrained.load import LoadedModel
from bert_jax.runs import run_folder
from bert_jax.runs.messages import log_truncation
from bert_jax.tasks.metrics.regression import regression_metrics
from bert_jax.tasks.metrics.vectors import normalize_vectors
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.train.workloads.base import Workload, distinct_token_ids

DEV = "dev"


class SentenceEmbeddingWorkload(Workload):
    """Trains a sentence encoder on groups of texts."""

    next_command = "bert-jax embed {run} --file FILE, or bert-jax export {run} --output exported"

    def __init__(
        self, experiment: Experiment, data: SentenceEmbeddingData, objective: SentenceEmbedding
    ):
        """Reads the groups of texts.

        Raises:
          UserError: a file is missing or damaged, or its groups are not what the loss needs.
          ConfigError: the loss is SimCSE without dropout.
        """
        super().__init__(experiment)
        _check_dropout(objective, experiment.train.tuning)
        self._data, self._config = data, objective
        self._tokenizer = load_tokenizer(data.tokenizer)
        self._groups = prepare_groups(read_text_groups(data.train), self._config.loss)
        self._dev = read_text_groups(data.dev) if data.dev is not None else None
        path = teacher_path(self._config.loss)
        self._targets = {} if path else loss_targets(self._groups, self._config.loss)
        self._tokenized = functools.cache(self._tokenize)
        self._features = functools.cache(self._make_features)
        self._mesh = experiment.mesh
        self._packed_rows = functools.cache(self._count_packed_rows)

    def prepare_run_folder(self, folder: Path) -> None:
        """Checks the tokenizer against the model and saves it; see `Workload`."""
        model = self._config.model
        self._check_and_save_tokenizer(self._tokenizer, self._data.tokenizer, model, folder)

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

    def training_token_ids(self) -> np.ndarray | None:
        """Returns the token ids of all texts, and special ones; see `Workload`."""
        features = [self._tokenized(phase.seq_length) for phase in self._phases]
        ids = distinct_token_ids(self._tokenizer, *(each.input_ids for each in features))
        expansion = getattr(self._config.sentence_encoder, "expansion", None)
        return ids if expansion is None else np.append(ids, expansion.token_id)

    def on_train_start(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path
    ) -> None:
        """Computes the teacher's vectors or scores of all texts, if the loss has a teacher."""
        if path := teacher_path(self._config.loss):
            self._targets = teacher_targets(self._groups, self._config, path)

    def shapes(self, phase_index: int) -> list[dict[str, int]]:
        """Returns one shape for each length that a batch of the phase has; see `Workload`."""
        phase = self._phases[phase_index]
        num_texts = self._groups.num_texts
        sizes = {"B": phase.batch_size, "A": num_texts, "C": num_texts - 1}
        for name, dim in (("teacher_vectors", "D"), ("guide_vectors", "E")):
            if name in self._targets:
                sizes[dim] = self._targets[name][0].shape[-1]
        if (rows := self._packed_rows(phase_index)) is not None:
            return [{**sizes, "L": length, "R": count} for length, count in rows.items()]
        lengths = self._loader(phase_index, 0).distinct_batch_lengths(phase.steps)
        return [{**sizes, "L": length} for length in lengths]

    def batch_fields(self, objective: Objective) -> tuple[str, ...]:
        """Returns the fields that the objective needs, and that of packed rows."""
        return (*objective.batch_fields(), *((PACKED_TOKENS,) if self._config.packs_texts else ()))

    def _count_packed_rows(self, phase_index: int) -> dict[int, int] | None:
        if not self._config.packs_texts:
            return None
        data, fsdp, _ = self._mesh.axis_sizes(jax.device_count())
        steps = self._phases[phase_index].steps
        return self._loader(phase_index, 0).count_packed_rows(steps, data * fsdp)

    @contextlib.contextmanager
    def loader(self, phase_index: int, position: int) -> Generator[SentenceEmbeddingLoader]:
        """Opens the training loader; see `Workload`."""
        yield self._loader(phase_index, position, self._packed_rows(phase_index))

    def _loader(
        self, phase_index: int, position: int, packed_rows: Mapping[int, int] | None = None
    ) -> SentenceEmbeddingLoader:
        phase, chunk_size = self._phases[phase_index], self._config.chunk_size
        num_chunks = 1 if chunk_size is None else phase.batch_size // chunk_size
        return make_loader(
            self._features(phase.seq_length),
            self._groups,
            self._config,
            self._data.batch_lengths(phase.seq_length),
            regularizer_warmup=self._regularizer_warmup(phase_index),
            deletion=self._deletion(),
            packed_rows=packed_rows,
            num_parts=num_chunks * phase.gradient_accumulation_steps,
            batch_size=phase.batch_size,
            seed=self._seed + phase_index,
            pad_id=self._tokenizer.pad_id,
            start=position,
        )

    def _regularizer_warmup(self, phase_index: int) -> tuple[int, int] | None:
        """Returns the updates before a phase, and those of the warmup; None for other losses."""
        if not isinstance(self._config.loss, SpladeLoss):
            return None
        steps = [phase.steps for phase in self._phases]
        warmup_steps = int(sum(steps) * self._config.loss.regularizer_warmup_ratio)
        return sum(steps[:phase_index]), warmup_steps

    def _deletion(self) -> WordDeletion | None:
        """Returns how words of the first text are deleted; None for losses without deletion."""
        if not isinstance(self._config.loss, DenoisingAutoEncoderLoss):
            return None
        return WordDeletion(self._tokenizer.word_starts, self._config.loss.deletion_ratio)

    def evaluator(
        self, objective: Objective, phase_index: int, mesh: jax.sharding.Mesh
    ) -> "SimilarityEvaluator | None":
        """Returns the evaluator of the dev pairs; see `Workload`."""
        evaluation = self._evaluation
        if not isinstance(evaluation, LabeledEval):
            return None
        if self._dev is None or evaluation.split != DEV:
            raise ConfigError(
                f"train.evaluation.split is {evaluation.split!r} and data.dev is {self._data.dev}; "
                "expected 'dev' and pairs with scores, or set train.evaluation to null"
            )
        if not isinstance(objective, SentenceEmbeddingObjective):
            raise ConfigError(
                "data.dev are pairs with scores, whose correlation with cosines needs one dense "
                "vector for each text; remove --dev (data.dev), and evaluate with "
                "`bert-jax search evaluate`"
            )
        sharding.check_batch_size(evaluation.batch_size, 1, mesh)
        seq_length = self._phases[phase_index].seq_length
        features = group_features(_flat(self._dev), self._tokenizer, seq_length)
        return SimilarityEvaluator(
            objective,
            self._dev,
            features,
            (*fit_bucket_lengths(features.lengths, seq_length), seq_length),
            batch_size=evaluation.batch_size,
            pad_id=self._tokenizer.pad_id,
            mesh=mesh,
        )

    def on_train_end(
        self, objective: Objective, params: Any, mesh: jax.sharding.Mesh, folder: Path, step: int
    ) -> None:
        """Writes the correlations of the dev pairs, computed with the best parameters."""
        evaluator = self.evaluator(objective, len(self._phases) - 1, mesh)
        if evaluator is None:
            return
        metrics = {DEV: evaluator(params)}
        if jax.process_index() == 0:
            write_json(folder / run_folder.EVALUATION, metrics)

    def _make_features(self, seq_length: int) -> Features:
        features = self._tokenized(seq_length)
        return dataclasses.replace(features, targets={**features.targets, **self._targets})

    def _tokenize(self, seq_length: int) -> Features:
        groups, config = self._groups, self._config.sentence_encoder
        features = group_features(groups, self._tokenizer, seq_length, config)
        log_truncation(groups.name, features.num_truncated, len(groups.texts), seq_length)
        limit = self._config.first_text_length
        if limit is not None and (longest := max_text_lengths(features)[0]) > limit:
            raise ConfigError(
                f"objective.first_text_length is {limit}, but the longest first text of "
                f"{groups.name} has {longest} tokens; expected at least {longest}, or null to "
                "encode all texts at one length"
            )
        return features


def _check_dropout(objective: SentenceEmbedding, tuning: TuningConfig) -> None:
    """Raises a ConfigError if the two vectors of a text in `UnsupervisedSimCSE` would be equal."""
    if not isinstance(single_loss(objective.loss), UnsupervisedSimCSE):
        return
    # ESM's `token_dropout` is a flag: it scales embeddings, and draws nothing at random.
    names = [f.name for f in dataclasses.fields(objective.model) if "dropout" in f.name]
    names = [name for name in names if not isinstance(getattr(objective.model, name), bool)]
    rates = [getattr(objective.model, name) for name in names]
    rates.append(getattr(tuning.adapter, "dropout", 0.0))
    if not any(rates):
        raise ConfigError(
            "UnsupervisedSimCSE needs dropout, which makes the two vectors of a text different, "
            f"but all dropout rates of the model are 0 ({', '.join(names)}); set one, such as "
            "objective.model.hidden_dropout_prob=0.1, or choose another --loss"
        )


def make_loader(
    features: Features,
    groups: TextGroups,
    objective: SentenceEmbedding,
    bucket_lengths: Sequence[int],
    *,
    regularizer_warmup: tuple[int, int] | None = None,
    deletion: WordDeletion | None = None,
    packed_rows: Mapping[int, int] | None = None,
    **settings: int,
) -> SentenceEmbeddingLoader:
    """Returns the batches of this process, in the way that the loss needs them.

    Args:
      regularizer_warmup, deletion, packed_rows: see `SentenceEmbeddingLoader`.
      settings: further arguments of `SentenceEmbeddingLoader`.
    """
    return SentenceEmbeddingLoader(
        features,
        text_ids(groups) if has_in_batch_negatives(objective.loss) else None,
        bucket_lengths,
        by_length=not objective.packs_texts and not compares_examples(objective.loss),
        regularizer_warmup=regularizer_warmup,
        deletion=deletion,
        packed_rows=packed_rows,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        **settings,
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


def prepare_groups(groups: TextGroups, loss: SentenceLoss) -> TextGroups:
    """Returns the groups in the form that a loss reads.

    For `UnsupervisedSimCSE` and `DenoisingAutoEncoderLoss` these are pairs of a text with itself,
    for the vectors of a teacher single texts.

    Raises:
      UserError: the groups have too few or too many texts, no scores or labels, or scores that the
        loss does not use.
    """
    single = single_loss(loss)
    match single:
        case UnsupervisedSimCSE() | DenoisingAutoEncoderLoss():
            return repeated_texts(groups)
        case MSELoss() | EmbedDistillLoss():
            return single_texts(groups)
        case _:
            _check_num_texts(groups, single)
            _check_labels(groups, single)
            return groups


def loss_targets(groups: TextGroups, loss: SentenceLoss) -> dict[str, Any]:
    """Returns the batch field of labels or scores with a value for each group; {} for none.

    Raises:
      UserError: a label is not one of the loss.
    """
    if groups.teacher_scores is not None:
        return {"label_logits": list(groups.teacher_scores)}
    match single_loss(loss):
        case SoftmaxLoss(labels=names):
            return {"labels": _label_ids(groups, {name: i for i, name in enumerate(names)})}
        case ContrastiveLoss():
            return {"labels": _label_ids(groups, {"0": 0, "1": 1})}
        case CosineSimilarityLoss() | CoSENTLoss() | AnglELoss():
            assert groups.scores is not None
            return {"label_values": groups.scores.tolist()}
        case _:
            return {}


# Computed once, when a run starts or resumes: vectors and scores of teachers are batch fields and
# not parameters.
def teacher_targets(groups: TextGroups, config: SentenceEmbedding, path: str) -> dict[str, Any]:
    """Returns the batch field of what a teacher computes for each group.

    Raises:
      UserError: the teacher cannot be read.
      ConfigError: its vectors must have the size of the student's, and have another.
    """
    # Imported here, so that a run without a teacher loads no model readers.
    from bert_jax.pretrained.load import load_encoder

    teacher = load_encoder(path)
    if distillation_loss(config.loss) is not None and teacher.head is not None:
        return {"label_logits": list(_cross_encoder_scores(groups, teacher))}
    vectors = _teacher_vectors(groups, teacher)
    if distillation_loss(config.loss) is not None:
        scores = np.sum(vectors[:, :1] * vectors[:, 1:], axis=-1)
        return {"label_logits": list(scores.astype(np.float32))}
    single, size = single_loss(config.loss), config.embedding_size
    if isinstance(single, GISTEmbedLoss):
        return {"guide_vectors": list(vectors.astype(np.float32))}
    if isinstance(single, EmbedDistillLoss):
        size = single.projection_size or size
    if vectors.shape[-1] != size:
        raise ConfigError(
            f"the teacher {path} has vectors of {vectors.shape[-1]} components, but those of the "
            f"model have {size}; expected the same size: choose --loss embed-distill, which adds a "
            "layer for training, or another teacher"
        )
    return {"teacher_vectors": list(vectors[:, 0].astype(np.float32))}


def _cross_encoder_scores(groups: TextGroups, teacher: LoadedModel) -> np.ndarray:
    """Returns a cross-encoder's outputs for the first text with each other one, float32 [n, A-1].

    Raises:
      UserError: the teacher has a head for another kind of task.
    """
    from bert_jax.predict.reranker import Reranker

    pairs = [(group[0], text) for group in groups.texts for text in group[1:]]
    unique = list(dict.fromkeys(pairs))
    outputs = Reranker(teacher).outputs_of_pairs(unique)
    by_pair = dict(zip(unique, outputs, strict=True))
    scores = np.array([by_pair[pair] for pair in pairs], np.float32)
    return scores.reshape(len(groups.texts), -1)


def _teacher_vectors(groups: TextGroups, teacher: LoadedModel) -> np.ndarray:
    """Returns the teacher's vectors of all texts, float [n, A, E]."""
    from bert_jax.predict.embedder import Embedder

    # A text of several examples is embedded once; mining repeats a query for each of its
    # negatives.
    texts = list(dict.fromkeys(text for group in groups.texts for text in group))
    by_text = dict(zip(texts, Embedder(teacher)(texts), strict=True))
    return np.stack([[by_text[text] for text in group] for group in groups.texts])


def label_names(groups: TextGroups) -> tuple[str, ...]:
    """Returns the names of the classes of the groups, in alphabetical order.

    Raises:
      UserError: the groups have no labels.
    """
    _require_labels(groups, SoftmaxLoss)
    # Alphabetical, so that the class ids do not depend on the order of the file.
    return tuple(sorted(set(groups.labels or ())))


def _check_num_texts(groups: TextGroups, loss: SingleLoss | UnsummedLoss) -> None:
    match loss:
        case _ if distillation_loss(loss) is not None:
            is_expected, expected = groups.num_texts >= 3, "3 or more: query, positive, negatives"
        case MultipleNegativesRankingLoss() | GISTEmbedLoss() | SpladeLoss() | MaxSimRankingLoss():
            is_expected, expected = groups.num_texts >= 2, "2 or more: anchor, positive, negatives"
        case SupervisedSimCSE():
            is_expected = groups.num_texts in (2, 3)
            expected = "3: premise, entailed hypothesis, contradicting hypothesis"
        case TripletLoss():
            is_expected, expected = groups.num_texts == 3, "3: anchor, positive, negative"
        case _:
            is_expected, expected = groups.num_texts == 2, "2"
    if not is_expected:
        raise UserError(
            f"{groups.name}: each example has {groups.num_texts} texts, but "
            f"{type(loss).__name__} needs {expected}; name the columns with --texts, or choose "
            "another --loss"
        )


def _check_labels(groups: TextGroups, loss: SingleLoss | UnsummedLoss) -> None:
    is_distillation = distillation_loss(loss) is not None
    has_scores = groups.teacher_scores is not None
    if has_scores and (not is_distillation or teacher_path(loss)):
        raise UserError(
            f"{groups.name} has scores of a teacher, which {type(loss).__name__} does not use"
            f"{' with a teacher' if is_distillation else ''}; leave out --teacher-scores"
            f"{' or --teacher' if is_distillation else ', or choose a loss such as margin-mse'}"
        )
    if is_distillation and not has_scores and not teacher_path(loss):
        raise UserError(
            f"{groups.name} has no scores of a teacher, which the loss needs; name their columns "
            "with --teacher-scores, or a model that computes them with --teacher"
        )
    match loss:
        case CosineSimilarityLoss() | CoSENTLoss() | AnglELoss():
            if groups.scores is None:
                raise UserError(_missing(groups, "score", type(loss)))
        case SoftmaxLoss() | ContrastiveLoss():
            _require_labels(groups, type(loss))
        case _:
            if groups.scores is not None:
                raise UserError(
                    f"{groups.name} has scores, which {type(loss).__name__} does not use: it would "
                    "treat pairs with low scores as similar texts too; expected a loss of scores, "
                    "such as --loss cosent, or data without scores"
                )


def _require_labels(groups: TextGroups, loss: type) -> None:
    if groups.labels is None:
        raise UserError(_missing(groups, "label", loss))


def _missing(groups: TextGroups, column: str, loss: type) -> str:
    return (
        f"{groups.name} has no {column}s, which {loss.__name__} needs; name the column with "
        f"--{column}, or choose another --loss"
    )


def _label_ids(groups: TextGroups, ids: dict[str, int]) -> list[int]:
    for index, label in enumerate(groups.labels or ()):
        if label not in ids:
            raise UserError(
                f"{groups.name}: example {index + 1} has the label {label!r}; expected one of "
                f"{', '.join(ids)}"
            )
    return [ids[label] for label in groups.labels or ()]
