"""Makes experiments from a pretrained model and its data: fine-tuning and sentence encoders.

One module, because all choose lengths, numbers of updates and checkpoints by the same rules.
"""

import dataclasses
import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from bert_jax.config.data import FineTuningData, MultiTaskData, NamedTask
from bert_jax.config.distillation import TEACHER_PARAMS, SoftLabels, TaskDistillation, Teacher
from bert_jax.config.embedding_losses import (
    DenoisingAutoEncoderLoss,
    MaxSimRankingLoss,
    SentenceLoss,
    SoftmaxLoss,
    compares_examples,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import (
    HeadTruncation,
    JointWindows,
    Mixing,
    ProportionalMixing,
    TaskConfig,
    Truncation,
    Windows,
)
from bert_jax.config.objectives import (
    FineTuning,
    ListwiseLoss,
    MultiTask,
    NamedHead,
    UncertaintyWeighting,
    UniformWeighting,
)
from bert_jax.config.prompts import Prompt
from bert_jax.config.sentence_embeddings import (
    SentenceEmbedding,
    SentenceEmbeddingData,
    StsBenchmark,
    TextFile,
    TextGroupsConfig,
)
from bert_jax.config.train import (
    LARGEST_BATCH_SIZE,
    CheckpointConfig,
    LabeledEval,
    LoggingConfig,
    Phase,
    TrainConfig,
    WarmupLinear,
)
from bert_jax.config.tuning import TuningConfig, default_learning_rate
from bert_jax.data.finetuning.example import Task, is_labeled
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import (
    LENGTH_MULTIPLE,
    FineTuningLoader,
    fit_bucket_lengths,
)
from bert_jax.data.finetuning.readers.load_task import has_soft_labels, load_task
from bert_jax.data.sentence_embeddings.loader import SentenceEmbeddingLoader
from bert_jax.data.sentence_embeddings.text_groups import (
    group_features,
    max_text_lengths,
    read_text_groups,
)
from bert_jax.errors import ConfigError, UserError, check_range
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import scores_relevance
from bert_jax.models.sentence_encoder.config import EmbeddingConfig, PoolingMode
from bert_jax.pretrained.initial import load_model_or_tf1, tokenizer_folder
from bert_jax.pretrained.load import LoadedModel
from bert_jax.tasks.analysis import count_labels
from bert_jax.tasks.features import training_features
from bert_jax.tasks.metrics.classification import CALIBRATION_METRICS
from bert_jax.tasks.ranking import max_texts_per_query
from bert_jax.tasks.registry import head_for_data, kind_of, make_head
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.train.class_weights import class_weights as make_class_weights
from bert_jax.train.embedding_configs import choose_embedding_config
from bert_jax.train.workloads.multi_task import MEAN_METRIC
from bert_jax.train.workloads.sentence_embeddings import label_names, make_loader, prepare_groups

logger = logging.getLogger(__name__)

DEFAULT_EPOCHS = 3.0
MIN_UPDATES = 200
"""Fewest updates if the user sets no number of epochs. Three epochs of a few hundred examples are
too few updates to fit even the training examples (Mosbach et al. 2021; Zhang et al. 2021, section
6); `docs/results.md` has measurements. Three epochs of RTE are 234 updates."""
PART_EPOCHS_FACTOR = 3
"""Multiplies the default number of epochs if a part of the encoder is trained, which needs more."""
MAX_EVALUATIONS = 10


def fine_tuning_experiment(
    task: TaskConfig,
    model: str | None,
    *,
    teacher: str | None = None,
    teacher_layers: tuple[int, ...] = (),
    epochs: float | None = None,
    batch_size: int = 32,
    learning_rate: float | None = None,
    warmup_ratio: float = 0.1,
    max_length: int | None = None,
    truncation: Truncation = HeadTruncation(),  # noqa: B008 (frozen)
    window_overlap: int = FineTuningData.window_overlap,
    prompt: Prompt | None = None,
    class_weights: str | None = None,
    label_smoothing: float = 0.0,
    loss: ListwiseLoss | None = None,
    metric: str | None = None,
    patience: int | None = None,
    calibrate: bool = False,
    seed: int = 0,
    tuning: TuningConfig = TuningConfig(),  # noqa: B008 (frozen)
) -> Experiment:
    """Makes the experiment that fine-tunes a model on a task (Devlin et al. 2019, appendix A.3).

    Args:
      model: a run, Hugging Face folder or TF1 checkpoint; None to use `teacher_layers`.
      teacher: a model of this task to distill; the student starts with its `teacher_layers`.
      epochs: None for 3, or 9 for a part of the encoder, or more for few examples.
      learning_rate: the peak rate; None: the usual one.
      max_length: the tokens of a sequence; None: the usual number, or more for longer examples.
      prompt: trains the masked-LM head on label words at a mask.
      class_weights: "balanced", numbers, or labels with numbers, see `class_weights.py`.
      label_smoothing: the fraction of a label that is spread evenly over all classes.
      loss: a listwise loss of a ranking task; None for the loss of the head.
      metric: the metric of dev that ranks checkpoints; None for the first of the task, macro F1 if
        a class is rare, or NDCG with a listwise loss.
      patience: evaluations without a better `metric` after which training ends; None for none.
      calibrate: whether a temperature, and thresholds of two classes, are fitted on dev.

    Raises:
      UserError: task or model cannot be read, or a number is out of range.
    """
    _check_hyperparameters(epochs, batch_size, warmup_ratio)
    config, tokenizer, distillation = load_student(model, teacher, teacher_layers)
    labeled = _load_trainable_task(task)
    distillation = distillation or (SoftLabels() if has_soft_labels(labeled) else None)
    settings, has_default_length = (window_overlap, truncation, prompt), max_length is None
    if max_length is None:
        max_length = _task_max_length(labeled, tokenizer, config, tuning, *settings)
    features = training_features(labeled, tokenizer, max_length, *settings)
    bucket_lengths = _fit_lengths(features.lengths, max_length, epochs, batch_size)
    if has_default_length:
        _log_lengths(max_length, features.lengths, features.num_truncated, bucket_lengths)
    data = FineTuningData(
        task=task,
        tokenizer=str(tokenizer_folder(model or teacher or "")),
        truncation=truncation,
        prompt=prompt,
        window_overlap=window_overlap,
        bucket_lengths=bucket_lengths,
    )
    head, num_sequences = head_for_data(labeled, data, tokenizer), len(features)
    if loss is not None and scores_relevance(head):
        # With the rows of batches in which some queries have fewer texts than others.
        num_sequences = FineTuningLoader(
            features,
            (*bucket_lengths, max_length),
            batch_size=batch_size,
            seed=seed,
            pad_id=tokenizer.pad_id,
            texts_per_query=max_texts_per_query(labeled, batch_size),
        ).examples_per_epoch
    return Experiment(
        name=labeled.name,
        seed=seed,
        objective=FineTuning(
            model=config,
            head=head,
            distillation=distillation,
            class_weights=make_class_weights(class_weights, labeled) if class_weights else (),
            label_smoothing=label_smoothing,
            listwise_loss=loss,
            label_frequencies=kind_of(labeled).label_frequencies(
                labeled.splits["train"], labeled.labels
            ),
        ),
        data=data,
        init_from=model,
        train=_train_config(
            num_sequences,
            max_length,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            warmup_ratio=warmup_ratio,
            best_metric=_ranking_metric(labeled, metric, patience, calibrate, loss),
            patience=patience,
            calibrate=calibrate,
            tuning=_freeze_teacher(tuning, distillation),
        ),
    )


MAX_DEFAULT_LENGTH = 256
"""The length up to which the usual length is raised for longer training examples. Memory grows with
its square, and runs with other batch sizes should read the same texts."""


def _fit_lengths(
    lengths: np.ndarray, max_length: int, epochs: float | None, batch_size: int
) -> tuple[int, ...]:
    """Returns the bucket lengths of a run over sequences of these lengths."""
    if epochs is None:  # then there are at least MIN_UPDATES updates
        return fit_bucket_lengths(lengths, max_length)
    return fit_bucket_lengths(lengths, max_length, epochs * max(1, len(lengths) // batch_size))


def _default_max_length(
    features_of_length: Callable[[int], Features], usual: int, longest: int
) -> int:
    """Returns the number of tokens of a sequence if the user gives none.

    It is the usual number, or what the training examples need if some are longer. It is not less if
    all are shorter: batches are padded to what their texts need, and a trained model may read
    longer texts.

    Args:
      features_of_length: tokenizes the training examples with a maximum length.
      longest: the largest number of tokens that the model reads.
    """
    longest = min(longest, MAX_DEFAULT_LENGTH)
    if longest <= usual or not features_of_length(usual).num_truncated:
        return usual
    needed = int(features_of_length(longest).lengths.max())
    return min(longest, -(-needed // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)


def _task_max_length(
    task: Task,
    tokenizer: Tokenizer,
    model: EncoderConfig,
    tuning: TuningConfig,
    window_overlap: int,
    truncation: Truncation = HeadTruncation(),  # noqa: B008 (frozen)
    prompt: Prompt | None = None,
) -> int:
    """Returns the default number of tokens of a sequence of a task."""
    kind, longest = kind_of(task), model.max_length - tuning.num_virtual_tokens
    usual = min(kind.default_seq_length, longest)
    if kind.reads_windows or isinstance(truncation, Windows | JointWindows):
        return usual  # long examples are read whole, in windows
    settings = window_overlap, truncation, prompt
    return _default_max_length(
        lambda length: training_features(task, tokenizer, length, *settings),
        usual,
        longest,
    )


def _log_lengths(
    max_length: int, lengths: np.ndarray, num_truncated: int, bucket_lengths: Sequence[int]
) -> None:
    """Logs a default maximum length, and the lengths of batches up to that of the longest text."""
    longest = int(lengths.max(initial=0))
    found = f"longest training example: {longest}"
    if num_truncated:
        found = f"{num_truncated:,} training examples are longer"
    shorter = [str(length) for length in bucket_lengths if length < longest]
    needed = next((length for length in bucket_lengths if length >= longest), max_length)
    logger.info(
        "maximum length: %d tokens (%s); training batches have rows of %s tokens; change the "
        "maximum with --max-length",
        max_length,
        found,
        f"{', '.join(shorter)} or {needed}" if shorter else needed,
    )


RARE_FRACTION = 0.2
"""A class is rare if it has less than this fraction of an equal share of the training examples."""


def _ranking_metric(
    task: Task,
    metric: str | None,
    patience: int | None,
    calibrate: bool,
    loss: ListwiseLoss | None = None,
) -> str | None:
    """Returns the metric that ranks checkpoints; None without a labeled dev split."""
    if not _has_labeled_dev(task):
        flags = (("metric", metric), ("patience", patience), ("calibrate", calibrate or None))
        for name, value in flags:
            if value is not None:
                raise ConfigError(
                    f"{name} is {value}, but there is no labeled dev split to evaluate; add --dev"
                )
        return None
    if metric is not None:
        return metric
    if loss is not None:
        return "ndcg"  # scores of different queries are not comparable
    # GLUE's tasks have metrics of their own.
    if task.name != "columns" or "f1_macro" not in task.metrics or task.metrics[0] != "accuracy":
        return task.metrics[0]
    counts = Counter(count_labels(task, "train"))
    rarest, count = min(counts.items(), key=lambda item: item[1])
    fraction = count / counts.total()
    if fraction >= RARE_FRACTION / len(counts):
        return task.metrics[0]
    logger.info(
        "only %.2g %% of the training examples are %r, so checkpoints are ranked by macro F1 "
        "instead of accuracy; --metric chooses another metric, and --class-weights balanced gives "
        "rare classes more weight",
        100 * fraction,
        rarest,
    )
    return "f1_macro"


def multi_task_experiment(
    tasks: Mapping[str, TaskConfig],
    model: str,
    *,
    mixing: Mixing = ProportionalMixing(),  # noqa: B008 (frozen)
    weighting: UniformWeighting | UncertaintyWeighting = UniformWeighting(),  # noqa: B008 (frozen)
    epochs: float | None = None,
    batch_size: int = 32,
    learning_rate: float | None = None,
    warmup_ratio: float = 0.1,
    max_length: int | None = None,
    window_overlap: int = MultiTaskData.window_overlap,
    seed: int = 0,
    tuning: TuningConfig = TuningConfig(),  # noqa: B008 (frozen)
) -> Experiment:
    """Makes the experiment that fine-tunes one encoder on several tasks at once.

    All dev splits are evaluated together, and the checkpoint with the best mean of the tasks' first
    metrics is kept. The other arguments and the errors are as in `fine_tuning_experiment`.

    Args:
      tasks: name -> task; the names are used in metrics and file names.
      mixing: how often each task is sampled. An epoch has as many examples as all tasks together.
      weighting: how the losses of the tasks are combined.
    """
    _check_hyperparameters(epochs, batch_size, warmup_ratio)
    loaded, tokenizer = load_starting_model(model)
    loaded_tasks = {name: _load_trainable_task(task) for name, task in tasks.items()}
    heads = tuple(NamedHead(name=name, head=make_head(task)) for name, task in loaded_tasks.items())
    has_default_length = max_length is None
    if max_length is None:
        max_length = max(
            _task_max_length(task, tokenizer, loaded.config, tuning, window_overlap)
            for task in loaded_tasks.values()
        )
    features = [
        training_features(task, tokenizer, max_length, window_overlap)
        for task in loaded_tasks.values()
    ]
    lengths = np.concatenate([each.lengths for each in features])
    bucket_lengths = _fit_lengths(lengths, max_length, epochs, batch_size)
    if has_default_length:
        num_truncated = sum(each.num_truncated for each in features)
        _log_lengths(max_length, lengths, num_truncated, bucket_lengths)
    data = MultiTaskData(
        tasks=tuple(NamedTask(name=name, task=task) for name, task in tasks.items()),
        tokenizer=str(tokenizer_folder(model)),
        mixing=mixing,
        window_overlap=window_overlap,
        bucket_lengths=bucket_lengths,
    )
    return Experiment(
        name="+".join(tasks),
        seed=seed,
        objective=MultiTask(model=loaded.config, heads=heads, weighting=weighting),
        data=data,
        init_from=model,
        train=_train_config(
            len(lengths),
            max_length,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            warmup_ratio=warmup_ratio,
            best_metric=MEAN_METRIC if all(map(_has_labeled_dev, loaded_tasks.values())) else None,
            tuning=tuning,
        ),
    )


def _train_config(
    num_sequences: int,
    seq_length: int,
    *,
    epochs: float | None,
    batch_size: int,
    learning_rate: float | None,
    warmup_ratio: float,
    best_metric: str | None,
    tuning: TuningConfig,
    patience: int | None = None,
    calibrate: bool = False,
) -> TrainConfig:
    """Makes the config of a run that is evaluated and saved after epochs of `num_sequences`.

    If the user sets no number of epochs, there are at most MAX_EVALUATIONS evaluations.

    Args:
      best_metric: the metric to evaluate and to rank checkpoints by; None: no evaluation.
    """
    steps_per_epoch = -(-num_sequences // batch_size)
    num_epochs = epochs or _default_epochs(num_sequences, batch_size, tuning)
    steps = max(1, round(num_epochs * steps_per_epoch))
    eval_every = steps_per_epoch * (1 if epochs else math.ceil(num_epochs / MAX_EVALUATIONS))
    return TrainConfig(
        phases=(Phase(steps=steps, seq_length=seq_length, batch_size=batch_size),),
        schedule=WarmupLinear(
            peak_learning_rate=(
                default_learning_rate(tuning.method) if learning_rate is None else learning_rate
            ),
            warmup_steps=min(round(warmup_ratio * steps), steps - 1),
        ),
        logging=LoggingConfig(log_every=max(1, min(50, steps_per_epoch // 4))),
        tuning=tuning,
        checkpoints=CheckpointConfig(
            save_every=eval_every,
            keep_last=1,
            best_metric=best_metric,
            best_mode=_best_mode(best_metric),
            early_stopping_patience=patience,
        ),
        evaluation=LabeledEval(eval_every=eval_every, calibrate=calibrate) if best_metric else None,
    )


def _best_mode(metric: str | None) -> Literal["min", "max"] | None:
    if metric is None:
        return None
    return "min" if metric in (*CALIBRATION_METRICS, "mse") else "max"


def _default_epochs(num_sequences: int, batch_size: int, tuning: TuningConfig) -> float:
    """Returns 3, or more for few sequences (MIN_UPDATES) or a part of the encoder."""
    factor = PART_EPOCHS_FACTOR if tuning.trains_part_of_encoder else 1
    steps_per_epoch, usual = -(-num_sequences // batch_size), factor * DEFAULT_EPOCHS
    epochs = factor * math.ceil(max(DEFAULT_EPOCHS, MIN_UPDATES / steps_per_epoch))
    if epochs > usual:
        logger.info(
            "%s training sequences give only %d updates in an epoch, and a task needs at least %d: "
            "training for %d epochs (%d updates) instead of %d epochs; set --epochs "
            "(in a recipe, --arg epochs) to change it",
            f"{num_sequences:,}",
            steps_per_epoch,
            factor * MIN_UPDATES,
            epochs,
            epochs * steps_per_epoch,
            usual,
        )
    return epochs


def _check_hyperparameters(epochs: float | None, batch_size: int, warmup_ratio: float) -> None:
    if epochs is not None:
        check_range("epochs", epochs, above=0)
    check_range("batch_size", batch_size, at_least=1, at_most=LARGEST_BATCH_SIZE)
    check_range("warmup_ratio", warmup_ratio, at_least=0, below=1)


def _freeze_teacher(tuning: TuningConfig, distillation: object) -> TuningConfig:
    if not isinstance(distillation, TaskDistillation):
        return tuning
    return dataclasses.replace(tuning, frozen=(*tuning.frozen, TEACHER_PARAMS))


def _load_trainable_task(task: TaskConfig) -> Task:
    loaded_task = load_task(task)
    if "train" not in loaded_task.splits:
        raise UserError(
            f"{loaded_task.name} has no train split; give a file with labeled examples for it"
        )
    return loaded_task


def _has_labeled_dev(task: Task) -> bool:
    return all(map(is_labeled, task.splits.get("dev", ()))) and "dev" in task.splits


def load_student(
    model: str | None, teacher: str | None, teacher_layers: tuple[int, ...]
) -> tuple[EncoderConfig, Tokenizer, TaskDistillation | None]:
    """Returns the config and the tokenizer of the model to train, and its distillation if any."""
    start = teacher if model is None else model
    if start is None or bool(teacher_layers) == (model is not None):
        raise ConfigError(
            f"model is {model}, teacher {teacher} and teacher_layers {list(teacher_layers)}; "
            "expected a model to start from, or a teacher with the layers to start from"
        )
    loaded, tokenizer = load_starting_model(start)
    if teacher is None:
        return loaded.config, tokenizer, None
    teacher_config = loaded.config if teacher == start else load_model_or_tf1(teacher).config
    distillation = TaskDistillation(
        teacher=Teacher(path=teacher, model=teacher_config, layers=teacher_layers)
    )
    num_layers = len(teacher_layers) or loaded.config.num_hidden_layers
    config = dataclasses.replace(loaded.config, num_hidden_layers=num_layers)
    return config, tokenizer, distillation


def load_starting_model(model: str) -> tuple[LoadedModel, Tokenizer]:
    """Loads a run, Hugging Face folder or TF1 checkpoint with its tokenizer, which it must have."""
    loaded = load_model_or_tf1(model)
    if loaded.tokenizer is None:
        raise UserError(
            f"{model} has no vocabulary; copy the tokenizer files that it was trained with "
            "(such as vocab.txt) into the same folder"
        )
    return loaded, loaded.tokenizer


DEFAULT_MAX_LENGTH = 128


def sentence_embedding_experiment(
    train: TextGroupsConfig,
    model: str,
    loss: SentenceLoss,
    *,
    dev: TextFile | StsBenchmark | None = None,
    sentence_encoder: EmbeddingConfig | None = None,
    pooling: PoolingMode | None = None,
    has_static_queries: bool = False,
    epochs: float = 1.0,
    batch_size: int = 64,
    chunk_size: int | None = None,
    learning_rate: float = 2e-5,
    warmup_ratio: float = 0.1,
    max_length: int | None = None,
    eval_every: int | None = None,
    seed: int = 0,
) -> Experiment:
    """Makes the experiment that trains a model to embed texts.

    The checkpoint with the best Spearman correlation on `dev` is kept.

    Args:
      train: the groups of texts.
      model: a run, a Hugging Face folder or a TF1 checkpoint to start from.
      loss: for `SoftmaxLoss`, `softmax_loss` finds the labels.
      dev: pairs with scores; None for no evaluation.
      sentence_encoder: what makes vectors; None: as in the model if it has vectors of the kind that
        the loss needs, otherwise the mean over all tokens, SPLADE's maximum, or
        `colbert_config`.
      pooling: replaces only the pooling of a dense `sentence_encoder`; None to change nothing.
      has_static_queries: whether queries of a sparse model get a weight for each token, without
        the encoder.
      chunk_size: examples that are encoded at once; None for all.
      max_length: tokens of a text that are read; None for the `max_seq_length` of a sentence
        encoder, otherwise 128, or more for longer texts, and not more than the model allows.
      eval_every: updates between evaluations; None for ten in the run.

    Raises:
      UserError: data or model cannot be read, or a number is out of range.
    """
    _check_hyperparameters(epochs, batch_size, warmup_ratio)
    loaded, tokenizer = load_starting_model(model)
    base, loss = choose_embedding_config(
        loss, loaded, tokenizer, sentence_encoder, pooling, has_static_queries
    )
    groups, longest = prepare_groups(read_text_groups(train), loss), loaded.config.max_length
    # Each length is tokenized once: the default is often one that was tried to find it.
    features_of_length = functools.cache(
        functools.partial(group_features, groups, tokenizer, config=base)
    )
    has_default_length = max_length is None
    if max_length is None and base.max_seq_length is None:
        max_length = _default_max_length(
            features_of_length,
            min(DEFAULT_MAX_LENGTH, longest),
            longest,
        )
    max_length = max_length or min(base.max_seq_length or longest, longest)
    features = features_of_length(max_length)
    objective = SentenceEmbedding(
        model=loaded.config,
        sentence_encoder=dataclasses.replace(base, max_seq_length=max_length),
        loss=loss,
        chunk_size=chunk_size,
    )
    objective.check_batch(batch_size, gradient_accumulation_steps=1)
    if not objective.packs_texts:
        first_text_length = _first_text_length(features, loss)
        objective = dataclasses.replace(objective, first_text_length=first_text_length)
    loader = make_loader(
        features,
        groups,
        objective,
        (max_length,),
        batch_size=batch_size,
        seed=seed,
        pad_id=tokenizer.pad_id,
    )
    steps = _count_steps(loader, epochs)
    bucket_lengths = _fit_text_lengths(features, objective, loader, max_length, steps)
    if has_default_length:
        _log_lengths(max_length, features.lengths, features.num_truncated, bucket_lengths)
    return Experiment(
        name="sentence-encoder",
        seed=seed,
        objective=objective,
        data=SentenceEmbeddingData(
            train=train,
            dev=dev,
            tokenizer=str(tokenizer_folder(model)),
            bucket_lengths=bucket_lengths,
        ),
        init_from=model,
        train=_sentence_train_config(
            steps,
            max_length,
            batch_size,
            learning_rate,
            warmup_ratio,
            dev is not None,
            eval_every,
        ),
    )


def _fit_text_lengths(
    features: Features,
    objective: SentenceEmbedding,
    loader: SentenceEmbeddingLoader,
    max_length: int,
    num_updates: int,
) -> tuple[int, ...]:
    """Returns the bucket lengths of a run that trains a sentence encoder."""
    lengths = features.lengths
    if not (objective.packs_texts or compares_examples(objective.loss)):
        return fit_bucket_lengths(lengths, max_length, num_updates)
    # A batch has the length of its longest text.
    batches = loader.epoch_batches(0)
    longest = np.append(lengths[batches].max(axis=1), lengths.max())
    if not objective.packs_texts:
        return fit_bucket_lengths(longest, max_length, num_updates)
    num_tokens = loader.text_lengths.sum(axis=1)[batches].sum(axis=1)
    return fit_bucket_lengths(
        longest,
        max_length,
        num_updates,
        tokens_per_batch=np.append(num_tokens, 0),
        num_parts=batches.shape[1] // (objective.chunk_size or batches.shape[1]),
    )


def _first_text_length(features: Features, loss: SentenceLoss) -> int | None:
    """Returns the tokens of the longest first text if the others are at least twice as long.

    Otherwise it returns None: the program of a step has the encoder once instead of twice, and
    takes half as long to compile. A multi-vector model has a length for queries of its own.
    """
    if isinstance(loss, MaxSimRankingLoss | DenoisingAutoEncoderLoss):
        return None
    first, *others = max_text_lengths(features)
    first = -(-first // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return first if others and 2 * first <= max(others) else None


def softmax_loss(train: TextGroupsConfig) -> SoftmaxLoss:
    """Returns the softmax loss over the labels of the training data."""
    return SoftmaxLoss(labels=label_names(read_text_groups(train)))


def _count_steps(loader: SentenceEmbeddingLoader, epochs: float) -> int:
    """Returns the number of updates in a number of epochs, which may be a fraction."""
    whole = int(epochs)
    steps = sum(loader.num_batches(epoch) for epoch in range(whole))
    if epochs > whole:
        steps += round((epochs - whole) * loader.num_batches(whole))
    return max(1, steps)


def _sentence_train_config(
    steps: int,
    seq_length: int,
    batch_size: int,
    learning_rate: float,
    warmup_ratio: float,
    has_dev: bool,
    eval_every: int | None,
) -> TrainConfig:
    if eval_every is None:
        eval_every = max(1, -(-steps // MAX_EVALUATIONS))
    return TrainConfig(
        phases=(Phase(steps=steps, seq_length=seq_length, batch_size=batch_size),),
        schedule=WarmupLinear(
            peak_learning_rate=learning_rate,
            warmup_steps=min(round(warmup_ratio * steps), steps - 1),
        ),
        logging=LoggingConfig(log_every=max(1, min(50, steps // 20))),
        checkpoints=CheckpointConfig(
            save_every=eval_every,
            keep_last=1,
            best_metric="spearman" if has_dev else None,
            best_mode="max" if has_dev else None,
        ),
        evaluation=LabeledEval(eval_every=eval_every) if has_dev else None,
    )
