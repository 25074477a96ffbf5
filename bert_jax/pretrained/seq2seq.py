"""Loads an encoder-decoder into memory, from a run or a Hugging Face folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from bert_jax.config.config_lib import from_json
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.errors import UserError, describe_folder
from bert_jax.interop import huggingface
from bert_jax.interop.huggingface import find_tokenizer
from bert_jax.interop.seq2seq import ImportedSeq2Seq, read_seq2seq_folder
from bert_jax.io.json_io import read_json_object
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.families import ENCODER_DECODER_FAMILIES, formats, seq2seq_formats
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.models.parameters import check_finite, check_same_shapes
from bert_jax.params import paths
from bert_jax.pretrained.base_model import restore_run
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.runs import run_folder
from bert_jax.runs.messages import describe_model
from bert_jax.text import compatibility
from bert_jax.text.tokenizer import Tokenizer

_TYPE_NAMES = frozenset(family.__name__ for family in ENCODER_DECODER_FAMILIES)


@dataclass(frozen=True, kw_only=True)
class LoadedSeq2Seq:
    """Holds an encoder-decoder in memory.

    Attributes:
      params: nested dict of float32 NumPy arrays.
      config: the config of the model.
      tokenizer: None if the source has no tokenizer files.
      path: the path of the folder from which the model was loaded.
    """

    params: dict[str, Any]
    config: EncoderDecoderConfig
    tokenizer: Tokenizer | None
    path: str

    def __repr__(self) -> str:
        """Returns one line, without the parameters."""
        return f"<LoadedSeq2Seq {self.path}: {describe_model(self.config, self.params)}>"


def load_seq2seq(path: str | Path) -> LoadedSeq2Seq:
    """Reads a run folder, one step of a run, or a Hugging Face folder.

    Raises:
      UserError: the path has no model; the model has no decoder; a file is damaged; the family is
        not supported; or the tokenizer does not fit.
    """
    folder = resolve_model_folder(path)
    if (found := run_folder.find_run(folder)) is not None:
        return _load_run(*found)
    if not (folder / huggingface.CONFIG).is_file():
        raise UserError(
            f"{folder}: {describe_folder(folder)}; expected a run folder, or a Hugging Face folder "
            f"with {huggingface.CONFIG} and {huggingface.WEIGHTS}"
        )
    model_type = read_json_object(folder / huggingface.CONFIG).get("model_type")
    if str(model_type) in formats():
        raise _no_decoder(str(folder), str(model_type))
    return build_seq2seq(read_seq2seq_folder(folder), find_tokenizer(folder), str(folder))


def seq2seq_config(path: str | Path) -> EncoderDecoderConfig:
    """Returns the config of a model that `load_seq2seq` reads."""
    return load_seq2seq(path).config


def is_seq2seq(path: str | Path) -> bool:
    """Returns whether a folder has an encoder-decoder; False for a folder without any model."""
    folder = resolve_model_folder(path)
    if (found := run_folder.find_run(folder)) is not None:
        model = run_folder.read_config(found[0]).get("objective", {}).get("model") or {}
        return model.get("type") in _TYPE_NAMES
    file = folder / huggingface.CONFIG
    return file.is_file() and str(read_json_object(file).get("model_type")) in seq2seq_formats()


def build_seq2seq(
    imported: ImportedSeq2Seq, tokenizer: Tokenizer | None, path: str
) -> LoadedSeq2Seq:
    """Makes a model of parameters, config and tokenizer, after checking that they match.

    Raises:
      UserError: they do not match.
    """
    flat, config = imported
    expected = paths.flatten(build_encoder_decoder_network(config).abstract())
    check_same_shapes(flat, expected, path)
    check_finite(flat, path)
    if tokenizer is not None:
        advice = "use the vocabulary that the model was trained with"
        compatibility.check_embedding_rows(tokenizer.vocab_size, config.vocab_size, path, advice)
        compatibility.check_end_token(tokenizer, config.eos_token_id, path)
    return LoadedSeq2Seq(
        params=paths.unflatten(flat), config=config, tokenizer=tokenizer, path=path
    )


def _load_run(folder: Path, step: int | None) -> LoadedSeq2Seq:
    params, info, _ = restore_run(folder, step)
    model = info["config"]["objective"].get("model", {})
    if model.get("type") not in _TYPE_NAMES:
        raise _no_decoder(str(folder), str(model.get("type")))
    config = from_json(EncoderDecoderConfig, model, "objective.model")
    tokenizer = find_tokenizer(folder / TOKENIZER_FOLDER)
    return build_seq2seq(ImportedSeq2Seq(paths.flatten(params), config), tokenizer, str(folder))


def _no_decoder(path: str, model: str) -> UserError:
    families = " or ".join(family.family for family in ENCODER_DECODER_FAMILIES)
    return UserError(
        f"{path} is an encoder ({model}), which has no decoder, so it cannot generate text; "
        f"expected {families}; `bert-jax fill-mask` predicts tokens at masks"
    )


def check_decoder_tokens(tokenizer: Tokenizer, config: EncoderDecoderConfig, source: str) -> None:
    """Checks that padding and end of a model are those of the tokenizer of its training data.

    Raises:
      UserError: an id differs; the message begins with `source`.
    """
    for name, expected in (("pad_token_id", tokenizer.pad_id), ("eos_token_id", tokenizer.sep_id)):
        if (found := getattr(config, name)) != expected:
            raise UserError(
                f"{source}: the tokenizer has the id {expected}, but objective.model.{name} is "
                f"{found}; set it to {expected}"
            )


def start_from_seq2seq(path: str, initial_params: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a model with the shardings of the initial parameters of a run.

    Raises:
      UserError: the model cannot be read, or has parameters of other names or shapes.
    """
    found = paths.flatten(load_seq2seq(path).params)
    expected = paths.flatten(initial_params)
    for name in sorted(found.keys() | expected.keys()):
        shapes = [list(flat[name].shape) if name in flat else None for flat in (found, expected)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"--init-from {path}: {name} has shape {shapes[0]}, but objective.model needs "
                f"{shapes[1]}; set objective.model to the config of that model"
            )
    return paths.unflatten(
        {name: jax.device_put(found[name], leaf.sharding) for name, leaf in expected.items()}
    )
