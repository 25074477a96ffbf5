"""Loads a model from any folder: run, export, Hugging Face, sentence-transformers, peft adapter."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.data import MultiTaskData
from bert_jax.config.objectives import CausalLM, MultiTask, ObjectiveConfig
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.errors import ConfigError, UserError, describe_folder, require_list_of_texts
from bert_jax.interop import huggingface
from bert_jax.interop.huggingface import ImportedModel, find_tokenizer
from bert_jax.interop.peft.adapter_config import is_adapter_folder
from bert_jax.interop.sentence_folder import transformer_folder
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.encoder import Encoder, EncoderConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.model import build_network
from bert_jax.models.parameters import check_finite, missing_heads, validate_params
from bert_jax.models.sentence_encoder.config import (
    EmbeddingConfig,
)
from bert_jax.objectives.base import TrainedModel
from bert_jax.objectives.make import make_objective
from bert_jax.params import paths
from bert_jax.pretrained.adapter_folder import read_with_base
from bert_jax.pretrained.base_model import (
    complete_params,
    fitted_head,
    remaining_adapter,
    restore_run,
)
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq, is_seq2seq, load_seq2seq
from bert_jax.pretrained.setfit import SetFitHead, is_setfit_folder, load_head
from bert_jax.runs import run_folder
from bert_jax.runs.messages import describe_model
from bert_jax.runs.run_folder import CHECKPOINTS
from bert_jax.text import compatibility
from bert_jax.text.tokenizer import Tokenizer


def select_trained_model(
    params: dict[str, Any],
    info: Mapping[str, Any],
    task: str | None,
    source: str,
    *,
    is_causal_lm: bool = False,
) -> TrainedModel:
    """Returns the model that a run trained.

    Args:
      params: the parameters of a checkpoint, without an adapter.
      info: the metadata of the checkpoint.
      task: the task of a multi-task run whose head is loaded; None loads no head.
      source: the run folder and the checkpoint, for messages.
      is_causal_lm: whether the run trained a left-to-right model, and this is wanted.

    Raises:
      ConfigError: there is no such task.
      UserError: the run has an objective that makes no encoder.
    """
    config = info.get("config", {}).get("objective", {})
    name = config.get("type")
    if name is None:
        raise UserError(
            f"{source}: the metadata of the checkpoint has no config.objective.type; give the "
            "folder of a run of bert_jax"
        )
    objective = make_objective(from_json(ObjectiveConfig, config, "objective"))
    if not (objective.makes_encoder or is_causal_lm):
        raise UserError(
            f"{source}: the run's objective is {name!r}, which trains no encoder; give the folder "
            "of a run that pretrains or fine-tunes an encoder"
        )
    if not objective.has_tasks:
        require_no_task(source, task)
    return objective.trained_model(params, task)


def require_no_task(source: str, task: str | None) -> None:
    """Raises a ConfigError if a task was chosen of a model that does not have several tasks."""
    if task is not None:
        raise ConfigError(
            f"task {task!r}: {source} is not a run of several tasks, so there is none to choose"
        )


@dataclass(frozen=True, kw_only=True)
class RunCheckpoint:
    """Identifies the checkpoint of a run from which a model was loaded.

    Attributes:
      folder: the run folder.
      step: the step of the checkpoint.
      info: the metadata that was saved with the checkpoint.
      task: in a multi-task run, the task whose head was loaded.
    """

    folder: Path
    step: int
    info: dict[str, Any] = field(repr=False)
    task: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Returns the config of the run as JSON; with `task`, reduced to that task."""
        config = self.info.get("config", {})
        if self.task is None:
            return config
        objective = from_json(MultiTask, config["objective"], "objective").for_task(self.task)
        data = from_json(MultiTaskData, config["data"], "data").for_task(self.task)
        return {**config, "objective": to_json(objective), "data": to_json(data)}


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """Holds a model in memory.

    Attributes:
      params: nested dict of float32 NumPy arrays; only the parts that the source has.
      config: the config of the encoder.
      tokenizer: None if the source has no tokenizer files.
      path: the path of the folder from which the model was loaded.
      missing: pretraining heads of the model's family that the source lacks, such as "pooler".
      run: the checkpoint of the run; None for a Hugging Face folder or a TF1 checkpoint.
      head: the head of the task for which it was fine-tuned; None for a pretrained model.
      tasks: the names of the tasks, for a multi-task run that was loaded without heads.
      adapter: the adapter that was trained, if it cannot be merged into `params`, such as
        `PrefixTuning`.
      adapter_params: its parameters, which the network has under "adapter"; {} without adapter.
      sentence_encoder: what makes vectors of hidden states, for a run that trained an encoder of
        texts.
      sentence_head: its parameters. `embedding_model_of` reads the heads of folders.
    """

    params: dict[str, Any]
    config: EncoderConfig
    tokenizer: Tokenizer | None
    path: str
    missing: tuple[str, ...]
    run: RunCheckpoint | None = None
    head: TaskHead | None = None
    tasks: tuple[str, ...] = ()
    adapter: Adapter | None = None
    adapter_params: dict[str, Any] = field(default_factory=dict[str, Any])
    sentence_encoder: EmbeddingConfig | None = None
    sentence_head: dict[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        """Returns one line, without the parameters."""
        parts = [describe_model(self.config, self.params)]
        parts += [type(part).__name__ for part in (self.head, self.adapter) if part is not None]
        parts += ["sentence encoder"] if self.sentence_encoder is not None else []
        return f"<LoadedModel {self.path}: {', '.join(parts)}>"

    def encoder(self, compute: ComputeConfig | None = None) -> Encoder:
        """Returns the encoder as a Flax NNX module that holds the loaded parameters.

        It can be called, differentiated and put into a module of your own; see `docs/api.md`.

        Args:
          compute: dtypes and kernels of the module; None for float32.
        """
        require_no_adapter(self, "be used as a Flax module")
        network = build_network(self.config, compute=compute or ComputeConfig())
        return network.merge({"encoder": jax.device_put(self.params["encoder"])}).encoder

    def tokenize(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns texts as arguments of the encoder, padded to the longest text.

        Returns:
          {"input_ids", "token_type_ids", "attention_mask"}, each int32 [B, L]. Texts longer than
          the model allows are truncated.

        Raises:
          UserError: the model has no tokenizer.
        """
        require_list_of_texts(texts)
        if self.tokenizer is None:
            raise UserError(
                f"{self.path} has no tokenizer files; copy its tokenizer.json or vocab.txt into it"
            )
        add_special_tokens = self.tokenizer.build_inputs_with_special_tokens
        max_tokens = self.config.max_length - len(add_special_tokens([]))
        rows = [add_special_tokens(e.ids[:max_tokens]) for e in self.tokenizer.encode_batch(texts)]
        shape = (len(rows), max(map(len, rows), default=0))
        input_ids = np.full(shape, self.tokenizer.pad_id, np.int32)
        attention_mask = np.zeros(shape, np.int32)
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = row
            attention_mask[index, : len(row)] = 1
        return {
            "input_ids": input_ids,
            "token_type_ids": np.zeros(shape, np.int32),
            "attention_mask": attention_mask,
        }


@dataclass(frozen=True, kw_only=True)
class LoadedSetFit:
    """Holds a classifier of `bert-jax setfit` in memory.

    Attributes:
      encoder: the sentence encoder.
      head: the logistic regression on its vectors.
    """

    encoder: LoadedModel
    head: SetFitHead

    def __repr__(self) -> str:
        """Returns one line, without the parameters."""
        return f"<LoadedSetFit {self.path}: {', '.join(self.head.labels)}>"

    @property
    def path(self) -> str:
        """Returns the path of the folder from which the model was loaded."""
        return self.encoder.path


@dataclass(frozen=True, kw_only=True)
class LoadedCausalLM:
    """Holds a left-to-right language model, such as the result of `CausalLM`, in memory.

    Attributes:
      network: its layers, which have to be called with `causal=True`, and the LM head.
    """

    network: LoadedModel

    def __repr__(self) -> str:
        """Returns one line, without the parameters."""
        described = describe_model(self.network.config, self.network.params)
        return f"<LoadedCausalLM {self.path}: {described}>"

    @property
    def path(self) -> str:
        """Returns the path of the folder from which the model was loaded."""
        return self.network.path


AnyModel = LoadedModel | LoadedSetFit | LoadedCausalLM | LoadedSeq2Seq
"""A model of any kind. `LoadedModel` is an encoder, alone, with the head of a task, with an adapter
or with what makes it a sentence encoder; `LoadedSeq2Seq` is T5 or BART."""


def load_model(
    path: str | Path,
    task: str | None = None,
    base: str | Path | None = None,
    ignore: Sequence[str] = (),
) -> AnyModel:
    """Reads a model of any kind: a run, one step of a run, or a folder in Hugging Face's formats.

    Args:
      path: a run folder, one of its checkpoints, a folder of transformers or sentence-transformers,
        an adapter folder of peft, or a run of SetFit.
      task: the task of a multi-task run whose head is loaded; None loads no head.
      base: the model that an adapter folder was trained on; None for that in its config.
      ignore: names of tensors that are not read, such as "cls.structure.*", of a Hugging Face
        folder of an encoder with a head that its family does not have.

    Raises:
      ConfigError: there is no such task; there is a base, but no adapter folder; or `ignore` is for
        a folder of another kind.
      UserError: the path has no model; a file is damaged; the model's family is not supported; or
        the tokenizer has more tokens than the model.
    """
    folder = resolve_model_folder(path)
    if is_seq2seq(folder):
        require_no_task(str(folder), task)
        _require_no_base(str(folder), base)
        require_nothing_to_ignore(str(folder), ignore)
        return load_seq2seq(folder)
    found = run_folder.find_run(folder)
    if found is not None and _is_causal_lm(found[0]):
        require_no_task(str(folder), task)
        _require_no_base(str(folder), base)
        require_nothing_to_ignore(str(folder), ignore)
        return LoadedCausalLM(network=_load_run(*found, None, is_causal_lm=True))
    encoder = load_network(folder, task, base, ignore)
    if encoder.config.is_decoder:
        return LoadedCausalLM(network=encoder)
    if is_setfit_folder(folder):
        return LoadedSetFit(encoder=encoder, head=load_head(folder))
    return encoder


def require_encoder(model: AnyModel, purpose: str) -> LoadedModel:
    """Returns a model that is an encoder, or the encoder of a SetFit model.

    Args:
      purpose: what it is needed for, to follow "it cannot", such as "fill masks".

    Raises:
      UserError: the model is T5, BART or a left-to-right language model.
    """
    match model:
        case LoadedModel():
            return model
        case LoadedSetFit():
            return model.encoder
        case LoadedCausalLM():
            raise _causal_lm_error(model.path, purpose)
        case LoadedSeq2Seq():
            raise UserError(
                f"{model.path} is an encoder-decoder ({model.config.family}), so it cannot "
                f"{purpose}; `bert-jax generate` and bert_jax.Generator write texts with it"
            )


def _causal_lm_error(path: str, purpose: str) -> UserError:
    return UserError(
        f"{path} was trained left to right (CausalLM), so it cannot {purpose}; "
        "`bert-jax score` and `bert-jax minimal-pairs` read it"
    )


def _is_causal_lm(run: Path) -> bool:
    objective = run_folder.read_config(run).get("objective", {})
    return objective.get("type") == CausalLM.__name__


def load_encoder(
    path: str | Path,
    task: str | None = None,
    base: str | Path | None = None,
    ignore: Sequence[str] = (),
) -> LoadedModel:
    """Reads an encoder for callers that need one; arguments and errors are as for `load_model`.

    Raises:
      UserError: also if the model is T5, BART or a left-to-right language model.
    """
    model = load_network(path, task, base, ignore)
    if model.config.is_decoder:
        raise _causal_lm_error(model.path, "be used as an encoder")
    return model


def load_network(
    path: str | Path,
    task: str | None = None,
    base: str | Path | None = None,
    ignore: Sequence[str] = (),
) -> LoadedModel:
    """Reads an encoder, or a decoder that is none; arguments and errors are as for `load_model`."""
    folder = resolve_model_folder(path)
    path = str(folder)
    if is_adapter_folder(folder):
        require_no_task(path, task)
        require_nothing_to_ignore(path, ignore)
        imported, adapter, adapter_params = read_with_base(folder, base, load_encoder)
        model = build_model(imported, path)
        return dataclasses.replace(model, adapter=adapter, adapter_params=adapter_params)
    _require_no_base(path, base)
    if (found := run_folder.find_run(folder)) is not None:
        require_nothing_to_ignore(path, ignore)
        return _load_run(*found, task)
    encoder_folder = transformer_folder(folder)
    if (encoder_folder / huggingface.CONFIG).is_file():
        require_no_task(path, task)
        return build_model(huggingface.read_folder(encoder_folder, ignore), path)
    raise UserError(
        f"{path}: {describe_folder(folder)}; expected a run folder with {CHECKPOINTS}/, or a "
        f"Hugging Face folder with {huggingface.CONFIG} and {huggingface.WEIGHTS} "
        "(`bert-jax convert` makes one from a Google TF1 checkpoint)"
    )


def _require_no_base(source: str, base: str | Path | None) -> None:
    if base is not None:
        raise ConfigError(f"--base {base}: {source} is not an adapter folder, so it has no base")


def require_nothing_to_ignore(source: str, ignore: Sequence[str]) -> None:
    """Raises a ConfigError if there are tensors to ignore of a source that has no such option."""
    if ignore:
        raise ConfigError(
            f"the tensors to ignore are {', '.join(ignore)}, but {source} is not a Hugging Face "
            "folder of an encoder"
        )


def build_model(
    imported: ImportedModel, path: str, run: RunCheckpoint | None = None
) -> LoadedModel:
    """Makes a model of parameters, config and tokenizer, after checking that they match.

    Raises:
      UserError: they do not match.
    """
    flat_params, config, tokenizer, head = imported
    # Missing or additional parameters are found here with their paths, not later as an error of a
    # matrix product.
    validate_params(flat_params, config, path, head)
    check_finite(flat_params, path)
    if tokenizer is not None:
        advice = "use the vocabulary that the model was trained with"
        compatibility.check_embedding_rows(tokenizer.vocab_size, config.vocab_size, path, advice)
        compatibility.check_input_template(tokenizer, config.type_vocab_size, path)
        if run is None:  # runs of earlier versions may have such a tokenizer
            compatibility.check_pad_token_id(tokenizer, config.required_pad_token_id, path)
    return LoadedModel(
        params=paths.unflatten(flat_params),
        config=config,
        tokenizer=tokenizer,
        path=path,
        missing=missing_heads(flat_params, config),
        run=run,
        head=head,
    )


def require_single_task(model: LoadedModel, flag: str = "--task") -> None:
    """Raises a UserError if the model comes from a multi-task run and no task was chosen.

    Args:
      flag: the flag of the command line that chooses the task.
    """
    if model.tasks:
        raise UserError(
            f"{model.path} is a run of several tasks: {', '.join(model.tasks)}; choose one with "
            f"{flag}, as in {flag} {model.tasks[0]} (in Python: load_model(..., "
            f"task={model.tasks[0]!r}))"
        )


def require_tokenizer(model: LoadedModel | LoadedSeq2Seq) -> Tokenizer:
    """Returns the tokenizer of a model; raises a UserError if its folder has none."""
    if model.tokenizer is None:
        raise UserError(
            f"{model.path} has no tokenizer files (vocab.txt, tokenizer.json, vocab.json or a "
            ".model file); copy those with which the model was trained into this folder"
        )
    return model.tokenizer


def require_masked_lm(model: LoadedModel, purpose: str) -> None:
    """Raises a UserError if a model has no masked-LM head.

    Args:
      purpose: what it is needed for, such as "fill masks".
    """
    if "masked_lm" in model.missing:
        reason = model.config.missing_masked_lm_reason
        raise UserError(
            f"{model.path} has no masked-LM head, so it cannot {purpose}"
            + (f": {reason}" if reason else "")
        )


def require_no_adapter(model: LoadedModel, purpose: str) -> None:
    """Raises a UserError if a model has an adapter that could not be merged into its parameters.

    Args:
      purpose: what needs the parameters alone, to follow "it cannot", such as "be exported".
    """
    if model.adapter is not None:
        raise UserError(
            f"{model.path} was trained with {type(model.adapter).__name__}, which cannot be merged "
            f"into the model, so it cannot {purpose}; it can predict and be evaluated; train with "
            "LoRA, DoRA or IA3 for a model that can"
        )


def _load_run(
    folder: Path, step: int | None, task: str | None, *, is_causal_lm: bool = False
) -> LoadedModel:
    params, info, loaded_step = restore_run(folder, step)
    params = complete_params(params, info, str(folder), load_encoder)
    adapter_params = params.pop(paths.ADAPTER, {})
    trained = select_trained_model(params, info, task, str(folder), is_causal_lm=is_causal_lm)
    config = from_json(EncoderConfig, info["config"]["objective"]["model"], "objective.model")
    tokenizer = find_tokenizer(folder / TOKENIZER_FOLDER)
    run_checkpoint = RunCheckpoint(folder=folder, step=loaded_step, info=info, task=task)
    flat_params = paths.flatten(trained.params)
    head = fitted_head(folder, loaded_step, task) or trained.head
    imported = ImportedModel(flat_params, config, tokenizer, head)
    return dataclasses.replace(
        build_model(imported, str(folder), run_checkpoint),
        tasks=trained.tasks,
        adapter=remaining_adapter(info),
        adapter_params=adapter_params,
        sentence_encoder=trained.sentence_encoder,
        sentence_head=trained.sentence_head,
    )
