"""Loads the model from which training starts: all formats of `load.py`, and TF1 checkpoints."""

import logging
from collections.abc import Sequence
from pathlib import Path

from bert_jax.config.config_lib import from_json
from bert_jax.config.experiment import Experiment
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.errors import UserError
from bert_jax.interop import tf1
from bert_jax.interop.huggingface import ImportedModel, find_tokenizer
from bert_jax.models.encoder import EncoderConfig
from bert_jax.objectives.replaced_tokens import generator_params
from bert_jax.params import paths
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.pretrained.load import (
    LoadedModel,
    build_model,
    load_network,
    require_no_adapter,
    require_nothing_to_ignore,
)
from bert_jax.runs import run_folder
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer

logger = logging.getLogger(__name__)


def load_model_or_tf1(path: str | Path, ignore: Sequence[str] = ()) -> LoadedModel:
    """Reads a run folder, one step of a run, a Hugging Face folder or a Google TF1 checkpoint.

    Args:
      path, ignore: as for `load_model`.

    Raises:
      ConfigError, UserError: as `load_model`.
    """
    folder = resolve_model_folder(path)
    if tf1.find_checkpoint(folder) is not None:
        require_nothing_to_ignore(str(folder), ignore)
        return build_model(tf1.read_checkpoint(folder), str(folder))
    model = load_network(folder, ignore=ignore)
    require_no_adapter(model, "be the start of another training")
    return model


def load_generator(path: str | Path) -> LoadedModel:
    """Reads the generator of a `ReplacedTokens` run or of Google's ELECTRA checkpoint.

    It has its masked-LM head.

    Raises:
      UserError: the path is neither, or the run has another objective.
    """
    folder = resolve_model_folder(path)
    if not run_folder.is_run_folder(folder):
        return build_model(tf1.read_checkpoint(folder, generator=True), str(folder))
    from bert_jax.runs.checkpoints.step_folder import restore_params

    params, info, _ = restore_params(run_folder.checkpoint_dir(folder), None)
    objective = info["config"]["objective"]
    if objective["type"] != "ReplacedTokens":
        raise UserError(
            f"{path}: --generator is for runs with the objective 'ReplacedTokens', as those of the "
            f"recipes electra and deberta; the objective of this run is {objective['type']!r}"
        )
    return build_model(
        ImportedModel(
            flat_params=paths.flatten(generator_params(params)),
            config=from_json(EncoderConfig, objective["generator"], "objective.generator"),
            tokenizer=find_tokenizer(folder / TOKENIZER_FOLDER),
        ),
        str(folder),
    )


def require_readable_base(path: str) -> None:
    """Raises UserError if a model is a TF1 checkpoint, which only TensorFlow can read.

    The checkpoints of a run that trains a part of a model need the model whenever they are used.
    """
    if tf1.find_checkpoint(resolve_model_folder(path)) is not None:
        raise UserError(
            f"{path} is a TF1 checkpoint, and train.tuning.method trains only a part of it, so "
            "each prediction would need TensorFlow to read the rest; make a Hugging Face folder of "
            f"it with `bert-jax convert {path} --output FOLDER`, and start from that folder"
        )


def tokenizer_folder(model: str) -> Path:
    """Returns the folder with the tokenizer files of a model that `load_model_or_tf1` reads.

    Raises:
      UserError: there is no such model.
    """
    path = resolve_model_folder(model)
    checkpoint = tf1.find_checkpoint(path)
    if checkpoint is not None:
        return checkpoint.parent
    found = run_folder.find_run(path)
    return path if found is None else found[0] / TOKENIZER_FOLDER


def check_initial_tokenizer(
    experiment: Experiment, folder: Path, data: Tokenization, remedy: str
) -> None:
    """Checks that the data of a run has the vocabulary of its initial model and of its teacher.

    A run that is resumed is compared with the vocabulary in its own `folder`, because these models
    may not exist any more. Reads no parameters.

    Args:
      remedy: the next step for the user, with "{tokenizer}" in place of the model's folder.

    Raises:
      UserError: the vocabularies differ.
    """
    if (folder / TOKENIZER_FOLDER).exists():
        tokenizer_paths = {str(folder): folder / TOKENIZER_FOLDER}
    else:
        teacher = experiment.objective.teacher
        models = (experiment.init_from, teacher.path if teacher else None)
        tokenizer_paths = {model: tokenizer_folder(model) for model in models if model is not None}
    for model, tokenizer_path in tokenizer_paths.items():
        tokenizer = find_tokenizer(tokenizer_path)
        if tokenizer is None:
            logger.warning(
                "%s has no vocabulary files to compare with those of %s", model, data.path
            )
            continue
        check_same_tokenizer(
            Tokenization.of(tokenizer, model), data, remedy.format(tokenizer=tokenizer_path)
        )
