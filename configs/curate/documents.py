"""Curates text that people wrote as documents: no repetitions, no duplicates and near duplicates.

    bert-jax curate documents --output curated --arg files='books/*.txt'

The rules of web pages (C4's lines, Gopher's and FineWeb's quality) are left out: they would drop
verse, lists and dialogue.
"""

from bert_jax.apps.curate.exact_duplicates import ExactDuplicates
from bert_jax.apps.curate.near_duplicates import NearDuplicates
from bert_jax.apps.curate.plan import GOPHER_REPETITION, CurationConfig, Source
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.text.files import DocumentUnit


def get_config(
    *, files: str, document_unit: DocumentUnit = "file", max_dropped: float = 0.5
) -> CurationConfig:
    """Returns the config for text, .jsonl and .gz files that match a pattern."""
    source = Source(name="documents", files=TextFiles(files, document_unit=document_unit))
    return CurationConfig(
        sources=(source,),
        rule_sets=(GOPHER_REPETITION,),
        steps=(ExactDuplicates(), NearDuplicates()),
        max_dropped=max_dropped,
    )
