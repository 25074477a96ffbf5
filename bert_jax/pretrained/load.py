"""A pretrained or fine-tuned model in memory, from a run of ours or a Hugging Face folder.

    a run folder             config.json, checkpoints/, vocabulary/ (the newest good step, or of a
                             fine-tuning run the one that was best on dev)
    one step of a run        <run>/checkpoints/<step>
    a Hugging Face folder    config.json, model.safetensors or pytorch_model.bin; an export is one

A run of several tasks is read as the model of one of them, or without a head.

Nothing here reaches TensorFlow; `initial.py` reads Google's TF1 checkpoints as well.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.config_lib import from_json, to_json
from bert_jax.data.config import MultiTaskData
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.errors import ConfigError, UserError
from bert_jax.interop import huggingface
from bert_jax.interop.huggingface import ImportedModel, find_tokenizer
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.parameters import missing_heads, validate_params
from bert_jax.objectives.config import MultiTask
from bert_jax.objectives.multi_task import task_params
from bert_jax.params import paths
from bert_jax.runs import run_folder
from bert_jax.runs.run_folder import CHECKPOINTS
from bert_jax.text.compatibility import check_embedding_rows
from bert_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class RunCheckpoint:
    """Where in a run a model comes from.

    Attributes:
      folder: the run's folder.
      step: the checkpoint's.
      info: what was saved with it.
      task: of a run of several tasks the one whose head was read.
    """

    folder: Path
    step: int
    info: dict[str, Any]
    task: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The run's config as JSON; with `task` that of a run which has this task alone."""
        config = self.info.get("config", {})
        if self.task is None:
            return config
        objective = from_json(MultiTask, config["objective"], "objective").for_task(self.task)
        data = from_json(MultiTaskData, config["data"], "data").for_task(self.task)
        return {**config, "objective": to_json(objective), "data": to_json(data)}


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model in memory.

    Attributes:
      params: nested dict of float32 NumPy arrays; only the parts that the source has.
      config: the encoder.
      vocabulary: None when the source has no vocabulary files.
      origin: the path that was given.
      missing: heads that the source lacks ("pooler", "masked_lm", "next_sentence").
      run: where in a run it comes from; None for other people's formats.
      head: the head of the task that it was fine-tuned for; None for a pretrained model.
      tasks: of a run of several tasks that was read without a head, their names.
    """

    params: dict[str, Any]
    config: EncoderConfig
    tokenizer: Tokenizer | None
    path: str
    missing: tuple[str, ...]
    run: RunCheckpoint | None = None
    head: TaskHead | None = None
    tasks: tuple[str, ...] = ()


def load_model(path: str | Path, task: str | None = None) -> LoadedModel:
    """Reads a run folder, one step of a run, or a Hugging Face folder.

    Args:
      task: which one of a run of several tasks; None leaves their heads out.

    Raises:
      ConfigError: `task` is none of the run's, or it is not a run of several.
      UserError: nothing there that could be a model; a damaged or foreign file; a model that is not
        BERT; a vocabulary of another size than the model.
    """
    folder = Path(path)
    if run_folder.is_run_folder(folder):
        return _load_run(folder, None, task)
    if folder.name.isdigit() and folder.parent.name == CHECKPOINTS:
        return _load_run(folder.parent.parent, int(folder.name), task)
    if (folder / huggingface.CONFIG).is_file():
        _require_no_task(path, task)
        return build_model(huggingface.read_folder(folder), str(path))
    raise UserError(
        f"{path}: {_describe_folder(folder)}; expected a run folder with {CHECKPOINTS}/, or a "
        f"Hugging Face folder with {huggingface.CONFIG} and {huggingface.WEIGHTS} "
        "(`bert-jax import` makes one from a Google TF1 checkpoint)"
    )


def build_model(
    imported: ImportedModel, path: str, run: RunCheckpoint | None = None
) -> LoadedModel:
    """Checks that parameters, config and vocabulary belong together, and puts them together.

    Raises:
      UserError: they do not.
    """
    flat_params, config, tokenizer, head = imported
    validate_params(flat_params, config, path, head)
    if tokenizer is not None:
        advice = "Use the vocabulary that the model was trained with."
        check_embedding_rows(tokenizer.vocab_size, config.vocab_size, path, advice)
    return LoadedModel(
        params=paths.unflatten(flat_params),
        config=config,
        tokenizer=tokenizer,
        path=path,
        missing=missing_heads(flat_params, config),
        run=run,
        head=head,
    )


def require_single_task(model: LoadedModel) -> None:
    """Raises a UserError where a task has to be chosen first, because there are several."""
    if model.tasks:
        raise UserError(
            f"{model.path} is a run of several tasks: {', '.join(model.tasks)}; name one, "
            f"as --task {model.tasks[0]}"
        )


def _require_no_task(path: str | Path, task: str | None) -> None:
    if task is not None:
        raise ConfigError(
            f"task {task!r}: {path} is not a run of several tasks, so there is none to choose"
        )


def _load_run(folder: Path, step: int | None, task: str | None) -> LoadedModel:
    from bert_jax.checkpoints.checkpointer import restore_params  # orbax takes seconds to import

    checkpoints = run_folder.checkpoint_dir(folder)
    params, info, loaded_step = restore_params(checkpoints, step)
    best_step = info.get("best", {}).get("step")
    if step is None and best_step not in (None, loaded_step):
        params, info, loaded_step = restore_params(checkpoints, best_step)
    objective = info.get("config", {}).get("objective", {})
    if objective.get("type") not in ("Pretraining", "FineTuning", "MultiTask"):
        raise UserError(
            f"{folder} is a run of {objective.get('type') or 'an unknown objective'}; "
            "only runs of Pretraining, FineTuning and MultiTask can be loaded as a model"
        )
    config = from_json(EncoderConfig, objective["model"], "objective.model")
    tokenizer = find_tokenizer(folder / TOKENIZER_FOLDER)
    run_checkpoint = RunCheckpoint(folder=folder, step=loaded_step, info=info, task=task)
    task_names: tuple[str, ...] = ()
    if objective["type"] != "MultiTask":
        _require_no_task(folder, task)
        head = from_json(TaskHead | None, objective.get("head"), "objective.head")
    elif task is None:
        task_names = from_json(MultiTask, objective, "objective").task_names
        params, head = {"encoder": params["encoder"]}, None
    else:
        head = from_json(MultiTask, objective, "objective").for_task(task).head
        params = task_params(params, task)
    imported = ImportedModel(paths.flatten(params), config, tokenizer, head)
    return dataclasses.replace(build_model(imported, str(folder), run_checkpoint), tasks=task_names)


def _describe_folder(folder: Path) -> str:
    if not folder.exists():
        return "no such folder"
    if folder.is_file():
        return "this is a file"
    names = sorted(path.name for path in folder.iterdir())
    return "the folder holds " + (", ".join(names[:8]) or "nothing")
