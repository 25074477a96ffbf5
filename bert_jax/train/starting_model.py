"""Loads the model that fine-tuning starts from, its tokenizer, and the teacher if there is one."""

import dataclasses

from bert_jax.config.distillation import TaskDistillation, Teacher
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.pretrained.initial import load_model_or_tf1
from bert_jax.pretrained.load import LoadedModel
from bert_jax.text.tokenizer import Tokenizer


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
