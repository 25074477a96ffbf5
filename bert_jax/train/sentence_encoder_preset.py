"""Makes the experiment that trains a sentence encoder from a pretrained model and its data."""

import dataclasses

from bert_jax.config.experiment import Experiment
from bert_jax.config.sentence_embeddings import (
    SentenceEmbedding,
    SentenceEmbeddingData,
    SentenceLoss,
    SoftmaxLoss,
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
from bert_jax.data.sentence_embeddings.text_groups import read_text_groups
from bert_jax.errors import UserError, check_range
from bert_jax.models.sentence_encoder.config import PoolingMode, SentenceEncoderConfig
from bert_jax.pretrained.initial import load_model_or_tf1, tokenizer_folder
from bert_jax.pretrained.load import LoadedModel
from bert_jax.pretrained.sentence_model import sentence_model_of
from bert_jax.train.sources.sentence_embeddings import SentenceEmbeddingSource
from bert_jax.train.sources.sentence_targets import label_names

DEFAULT_MAX_LENGTH = 128
MAX_EVALUATIONS = 10


def sentence_embedding_experiment(
    train: TextGroupsConfig,
    model: str,
    loss: SentenceLoss,
    *,
    dev: TextFile | StsBenchmark | None = None,
    sentence_encoder: SentenceEncoderConfig | None = None,
    pooling: PoolingMode | None = None,
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
      sentence_encoder: pooling and what follows it; None for that of the model if it is a sentence
        encoder, otherwise the mean over all tokens.
      pooling: replaces only the pooling of `sentence_encoder`; None to change nothing.
      chunk_size: examples that are encoded at once; None for all.
      max_length: tokens of a text that are read; None for the `max_seq_length` of a sentence
        encoder, otherwise 128, and not more than the model allows.
      eval_every: updates between evaluations; None for ten in the run.

    Raises:
      UserError: data or model cannot be read, or a number is out of range.
    """
    _check_hyperparameters(epochs, batch_size, warmup_ratio)
    loaded = _load_starting_model(model)
    base = sentence_encoder or sentence_model_of(loaded).config
    if pooling is not None:
        base = dataclasses.replace(base, pooling=(pooling,))
    if max_length is None:
        max_length = min(base.max_seq_length or DEFAULT_MAX_LENGTH, loaded.config.max_length)
    encoder_config = dataclasses.replace(base, max_seq_length=max_length)
    data = SentenceEmbeddingData(train=train, dev=dev, tokenizer=str(tokenizer_folder(model)))
    experiment = Experiment(
        name="sentence-encoder",
        seed=seed,
        objective=SentenceEmbedding(
            model=loaded.config, sentence_encoder=encoder_config, loss=loss, chunk_size=chunk_size
        ),
        data=data,
        init_from=model,
        train=_train_config(1, max_length, batch_size, learning_rate, 0.0, False, None),
    )
    steps = _count_steps(SentenceEmbeddingSource(experiment, data), epochs)
    arguments = (max_length, batch_size, learning_rate, warmup_ratio, dev is not None, eval_every)
    return dataclasses.replace(experiment, train=_train_config(steps, *arguments))


def _check_hyperparameters(epochs: float, batch_size: int, warmup_ratio: float) -> None:
    check_range("epochs", epochs, above=0)
    check_range("batch_size", batch_size, at_least=1, at_most=LARGEST_BATCH_SIZE)
    check_range("warmup_ratio", warmup_ratio, at_least=0, below=1)


def softmax_loss(train: TextGroupsConfig) -> SoftmaxLoss:
    """Returns the softmax loss over the labels of the training data."""
    return SoftmaxLoss(labels=label_names(read_text_groups(train)))


def _load_starting_model(model: str) -> LoadedModel:
    loaded = load_model_or_tf1(model)
    if loaded.tokenizer is None:
        raise UserError(
            f"{model} has no vocabulary; copy the tokenizer files that it was trained with "
            "(such as vocab.txt) into the same folder"
        )
    return loaded


def _count_steps(source: SentenceEmbeddingSource, epochs: float) -> int:
    """Returns the number of updates in a number of epochs, which may be a fraction."""
    loader, whole = source.make_loader(0), int(epochs)
    steps = sum(loader.num_batches(epoch) for epoch in range(whole))
    if epochs > whole:
        steps += round((epochs - whole) * loader.num_batches(whole))
    return max(1, steps)


def _train_config(
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
