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

from bert_jax import paths
from bert_jax.config import from_json, to_json
from bert_jax.data.config import LabelledMixture
from bert_jax.errors import ConfigError, UserError
from bert_jax.interop import huggingface
from bert_jax.interop.foreign import Foreign, find_vocabulary
from bert_jax.models.config import BertConfig, TaskHead
from bert_jax.programs import parts
from bert_jax.programs.config import MultiTask
from bert_jax.programs.multi_task import single_task
from bert_jax.text.compatibility import check_embedding_rows
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.train import run_folder
from bert_jax.train.run_folder import CHECKPOINTS

VOCABULARY = "vocabulary"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
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
        program = from_json(MultiTask, config["program"], "program").single(self.task)
        data = from_json(LabelledMixture, config["data"], "data").single(self.task)
        return {**config, "program": to_json(program), "data": to_json(data)}


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
    config: BertConfig
    vocabulary: Vocabulary | None
    origin: str
    missing: tuple[str, ...]
    run: RunRecord | None = None
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
    source = Path(path)
    if run_folder.is_run(source):
        return _load_run(source, None, task)
    if source.name.isdigit() and source.parent.name == CHECKPOINTS:
        return _load_run(source.parent.parent, int(source.name), task)
    if (source / huggingface.CONFIG).is_file():
        _check_no_task(path, task)
        return assemble(huggingface.read_folder(source), str(path))
    raise UserError(
        f"{path}: {_what_is_there(source)}; expected a run folder with {CHECKPOINTS}/, or a "
        f"Hugging Face folder with {huggingface.CONFIG} and {huggingface.WEIGHTS} "
        "(`bert-jax import` makes one from a Google TF1 checkpoint)"
    )


def assemble(foreign: Foreign, origin: str, run: RunRecord | None = None) -> LoadedModel:
    """Checks that parameters, config and vocabulary belong together, and puts them together.

    Raises:
      UserError: they do not.
    """
    flat, config, vocabulary, head = foreign
    parts.check(flat, config, origin, head)
    if vocabulary is not None:
        advice = "Use the vocabulary that the model was trained with."
        check_embedding_rows(vocabulary.size, config.vocab_size, origin, advice)
    return LoadedModel(
        params=paths.unflatten(flat),
        config=config,
        vocabulary=vocabulary,
        origin=origin,
        missing=tuple(part for part in parts.HEADS if part not in parts.present(flat)),
        run=run,
        head=head,
    )


def check_one_task(model: LoadedModel) -> None:
    """Raises a UserError where a task has to be chosen first, because there are several."""
    if model.tasks:
        raise UserError(
            f"{model.origin} is a run of several tasks: {', '.join(model.tasks)}; name one, "
            f"as --task {model.tasks[0]}"
        )


def _check_no_task(path: str | Path, task: str | None) -> None:
    if task is not None:
        raise ConfigError(
            f"task {task!r}: {path} is not a run of several tasks, so there is none to choose"
        )


def _load_run(folder: Path, step: int | None, task: str | None) -> LoadedModel:
    from bert_jax.train.checkpoint import restore_params  # orbax takes seconds to import

    checkpoints = run_folder.checkpoints_of(folder)
    params, info, found = restore_params(checkpoints, step)
    best = info.get("best", {}).get("step")
    if step is None and best not in (None, found):
        params, info, found = restore_params(checkpoints, best)
    program = info.get("config", {}).get("program", {})
    if program.get("type") not in ("Pretraining", "FineTuning", "MultiTask"):
        raise UserError(
            f"{folder} is a run of {program.get('type') or 'an unknown program'}; "
            "only runs of Pretraining, FineTuning and MultiTask can be read as a BERT"
        )
    config = from_json(BertConfig, program["model"], "program.model")
    vocabulary = find_vocabulary(folder / VOCABULARY)
    record = RunRecord(folder=folder, step=found, info=info, task=task)
    names: tuple[str, ...] = ()
    if program["type"] != "MultiTask":
        _check_no_task(folder, task)
        head = from_json(TaskHead | None, program.get("head"), "program.head")
    elif task is None:
        names = from_json(MultiTask, program, "program").names
        params, head = {"encoder": params["encoder"]}, None
    else:
        head = from_json(MultiTask, program, "program").single(task).head
        params = single_task(params, task)
    foreign = Foreign(paths.flatten(params), config, vocabulary, head)
    return dataclasses.replace(assemble(foreign, str(folder), record), tasks=names)


def _what_is_there(source: Path) -> str:
    if not source.exists():
        return "no such folder"
    if source.is_file():
        return "this is a file"
    names = sorted(path.name for path in source.iterdir())
    return "the folder holds " + (", ".join(names[:8]) or "nothing")
