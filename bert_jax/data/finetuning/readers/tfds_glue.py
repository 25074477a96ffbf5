"""Reads GLUE from TensorFlow Datasets (TFDS)."""

import contextlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config.labeled_data import Glue
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS, make_glue_task
from bert_jax.errors import MissingExtraError, UserError
from bert_jax.io.import_tensorflow import import_tensorflow

try:
    import_tensorflow()
    import tensorflow as tf
    import tensorflow_datasets as tfds
except ModuleNotFoundError:
    raise MissingExtraError(
        "reading GLUE without --glue-dir needs TensorFlow Datasets", "seqio"
    ) from None

TFDS_TO_SPLIT = {
    "train": "train",
    "validation": "dev",
    "validation_matched": "dev",
    "validation_mismatched": "dev_mismatched",
    "test": "test",
    "test_matched": "test",
    "test_mismatched": "test_mismatched",
}
"""Name of a split in TFDS -> name here."""

# Text fields whose names differ from the columns of the official files.
_TEXT_FIELDS = {
    "mrpc": ("sentence1", "sentence2"),
    "mnli": ("premise", "hypothesis"),
    "ax": ("premise", "hypothesis"),
}


def dataset_name(task: str) -> str:
    """Returns the name and version of a GLUE task in TFDS."""
    return f"glue/{task}:2.0.0"


def tfds_splits(task: str) -> dict[str, str]:
    """Returns name of a split here -> name in TFDS."""
    names = set(GLUE_TASKS[task].files)
    is_mnli = task == "mnli"
    return {
        split: tfds_split
        for tfds_split, split in TFDS_TO_SPLIT.items()
        if split in names and (tfds_split.endswith("matched") == is_mnli or split == "train")
    }


def tfds_example(task: str, fields: Mapping[str, Any]) -> TextExample:
    """Converts a TFDS record (bytes and numbers, or arrays of rank 0); a label of -1 means none."""
    spec = GLUE_TASKS[task]
    text_field, text_pair_field = _TEXT_FIELDS.get(task, (spec.text, spec.text_pair))
    label_value = float(fields["label"])
    # A label of -1 selects the last name here, which the next lines replace by None.
    label = label_value if not spec.labels else spec.labels[int(label_value)]
    return TextExample(
        id=str(int(fields["idx"])),
        text=_decode_string(fields[text_field]),
        text_pair=None if text_pair_field is None else _decode_string(fields[text_pair_field]),
        label=None if label_value < 0 else label,
    )


def read_tfds_glue(config: Glue) -> Task:
    """Reads a task from TFDS, which downloads it once; MNLI gets the diagnostic set as "ax".

    Raises:
      UserError: the dataset is not on disk and cannot be downloaded.
    """
    with contextlib.suppress(RuntimeError):  # TensorFlow is already initialized
        tf.config.set_visible_devices([], "GPU")  # leave GPUs to JAX
    splits = _read_splits(config.task)
    if config.task == "mnli":
        splits["ax"] = _read_splits("ax")["test"]
    return make_glue_task(config, splits)


def _read_splits(task: str) -> dict[str, tuple[TextExample, ...]]:
    name = dataset_name(task)
    try:
        builder: Any = tfds.builder(name)
        builder.download_and_prepare()
    except (OSError, tfds.core.DatasetNotFoundError, tfds.download.DownloadError) as error:
        raise UserError(
            f"{name} is not in the TFDS folder and cannot be downloaded ({error}); pass the "
            "folder of the official files with --glue-dir"
        ) from None
    splits = {}
    for split, tfds_split in tfds_splits(task).items():
        records = tfds.as_numpy(builder.as_dataset(split=tfds_split, shuffle_files=False))
        examples = [tfds_example(task, row) for row in records]
        # TFDS stores records in the order of a hash; the official files have the order of the ids.
        splits[split] = tuple(sorted(examples, key=lambda example: int(example.id)))
    return splits


def _decode_string(value: Any) -> str:
    raw = value.item() if hasattr(value, "item") else value
    return raw.decode() if isinstance(raw, bytes) else str(raw)
