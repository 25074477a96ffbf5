"""Searches evaluation sets in text, and drops nothing: only reports what is found.

    bert-jax curate contamination --output report --arg files='books/*.txt' glue_dir=glue_data \\
        squad=dev-v1.1.json conll=eng.testb

The output has the files contamination.json, contamination.parquet and contamination-items.parquet,
and a copy of the documents, in which characters are normalized as always. `bert-jax evaluate
--contamination report` then computes the scores on items that were found and on the others. To
remove what is found, add the step `Decontamination` to a recipe of your own, with the action
`RemoveParagraphs()` or `DropDocuments()`.
"""

from pathlib import Path
from typing import get_args

from bert_jax.apps.curate.decontamination import Decontamination
from bert_jax.apps.curate.formats.files import ParquetFiles
from bert_jax.apps.curate.plan import CurationConfig, Source
from bert_jax.config.labeled_data import Conll, Glue, GlueName, Squad
from bert_jax.data.corpus.contamination.items import (
    EvaluationSet,
    FileItems,
    ReportOnly,
    Role,
    TaskItems,
)
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS, find_file
from bert_jax.errors import ConfigError


def get_config(
    *,
    files: str,
    glue_dir: str | None = None,
    squad: str | None = None,
    conll: str | None = None,
    items: str | None = None,
    input_fields: tuple[str, ...] = ("text",),
) -> CurationConfig:
    """Returns the config for files that match a pattern.

    Args:
      files: text, .jsonl and compressed files; or Parquet files with a column "text", if the
        pattern ends in .parquet.
      glue_dir: searches the dev and test sets of all tasks of GLUE that this folder has.
      squad: a file of SQuAD, version 1.1 or 2.0.
      conll: a file of CoNLL-2003.
      items: a CSV, TSV, JSON lines or Parquet file of your own.
      input_fields: the columns of `items`.
    """
    sets: list[EvaluationSet] = []
    if glue_dir is not None:
        sets += [TaskItems(task=Glue(task=n, folder=glue_dir)) for n in _tasks_in(Path(glue_dir))]
    if squad is not None:
        sets.append(TaskItems(task=Squad(test=squad, version="2.0"), name="squad"))
    if conll is not None:
        sets.append(TaskItems(task=Conll(test=conll), name="conll"))
    if items is not None:
        roles: dict[str, Role] = dict.fromkeys(input_fields, "input")
        sets.append(FileItems(name=Path(items).stem, file=items, fields=roles))
    if not sets:
        raise ConfigError(
            "contamination: no evaluation set; expected --arg glue_dir=, squad=, conll= or items="
        )
    is_parquet = files.endswith(".parquet")
    documents = ParquetFiles(files) if is_parquet else TextFiles(files)
    return CurationConfig(
        sources=(Source(name="documents", files=documents),),
        steps=(Decontamination(sets=tuple(sets), action=ReportOnly()),),
    )


def _tasks_in(folder: Path) -> list[GlueName]:
    """Returns the tasks of GLUE of which the folder has a file of dev or test examples."""
    found: list[GlueName] = []
    for name in get_args(GlueName):
        task = GLUE_TASKS[name]
        files = [file for split, file in task.files.items() if split != "train"]
        if find_file(
            folder, tuple(f"{each}/{file}" for each in task.folder_names for file in files)
        ):
            found.append(name)
    if not found:
        raise ConfigError(
            f"--arg glue_dir={folder}: no task of GLUE in this folder; expected files such as "
            "RTE/dev.tsv"
        )
    return found
