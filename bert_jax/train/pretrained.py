"""A pretrained or fine-tuned model in memory, from a run of ours or a Hugging Face folder.

    a run folder             config.json, checkpoints/, vocabulary/ (the newest good step, or of a
                             fine-tuning run the one that was best on dev)
    one step of a run        <run>/checkpoints/<step>
    a Hugging Face folder    config.json, model.safetensors or pytorch_model.bin; an export is one

Nothing here reaches TensorFlow; `initial.py` reads Google's TF1 checkpoints as well.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax import paths
from bert_jax.config import from_json
from bert_jax.errors import UserError
from bert_jax.interop import huggingface
from bert_jax.interop.foreign import Foreign, find_vocabulary
from bert_jax.models.config import BertConfig, TaskHead
from bert_jax.programs import parts
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.train.run_folder import CHECKPOINTS

VOCABULARY = "vocabulary"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Where in a run a model comes from: the run's folder, the step, what was saved with it."""

    folder: Path
    step: int
    info: dict[str, Any]


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
    """

    params: dict[str, Any]
    config: BertConfig
    vocabulary: Vocabulary | None
    origin: str
    missing: tuple[str, ...]
    run: RunRecord | None = None
    head: TaskHead | None = None


def load_model(path: str | Path) -> LoadedModel:
    """Reads a run folder, one step of a run, or a Hugging Face folder.

    Raises:
      UserError: nothing there that could be a model; a damaged or foreign file; a model that is not
        BERT; a vocabulary of another size than the model.
    """
    source = Path(path)
    if (source / CHECKPOINTS).is_dir():
        return _load_run(source, None)
    if source.name.isdigit() and source.parent.name == CHECKPOINTS:
        return _load_run(source.parent.parent, int(source.name))
    if (source / huggingface.CONFIG).is_file():
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
        check_vocabulary(vocabulary, config, origin)
    return LoadedModel(
        params=paths.unflatten(flat),
        config=config,
        vocabulary=vocabulary,
        origin=origin,
        missing=tuple(part for part in parts.HEADS if part not in parts.present(flat)),
        run=run,
        head=head,
    )


def _load_run(folder: Path, step: int | None) -> LoadedModel:
    from bert_jax.train.checkpoint import restore_params  # orbax takes seconds to import

    params, info, found = restore_params(folder / CHECKPOINTS, step)
    best = info.get("best", {}).get("step")
    if step is None and best not in (None, found):
        params, info, found = restore_params(folder / CHECKPOINTS, best)
    program = info.get("config", {}).get("program", {})
    if program.get("type") not in ("Pretraining", "FineTuning"):
        raise UserError(
            f"{folder} is a run of {program.get('type') or 'an unknown program'}; "
            "only runs of Pretraining and FineTuning can be read as a BERT"
        )
    config = from_json(BertConfig, program["model"], "program.model")
    head = from_json(TaskHead | None, program.get("head"), "program.head")
    vocabulary = find_vocabulary(folder / VOCABULARY)
    record = RunRecord(folder=folder, step=found, info=info)
    return assemble(Foreign(paths.flatten(params), config, vocabulary, head), str(folder), record)


def check_vocabulary(vocabulary: Vocabulary, config: BertConfig, source: str) -> None:
    """Raises unless the vocabulary has as many pieces as the model has word vectors.

    A table may be padded with unused rows up to a multiple of 8, as some training programs do.
    """
    unused = config.vocab_size - vocabulary.size
    if unused == 0 or (0 < unused < 128 and config.vocab_size % 8 == 0):
        return
    raise UserError(
        f"{source}: the vocabulary has {vocabulary.size} pieces, but the model has "
        f"{config.vocab_size} word vectors; use the vocabulary that the model was trained with"
    )


def _what_is_there(source: Path) -> str:
    if not source.exists():
        return "no such folder"
    if source.is_file():
        return "this is a file"
    names = sorted(path.name for path in source.iterdir())
    return "the folder holds " + (", ".join(names[:8]) or "nothing")
