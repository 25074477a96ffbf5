"""Curates text that people wrote as documents: no repetitions, no duplicates and near duplicates.

    bert-jax curate documents --output curated --arg files='books/*.txt'

`--document-unit`, `--json-field` and `--encoding` say how the files are read. The rules of web
pages (C4's lines, Gopher's and FineWeb's quality) are left out: they would drop verse, lists and
dialogue.
"""

from bert_jax.apps.curate.exact_duplicates import ExactDuplicates
from bert_jax.apps.curate.near_duplicates import NearDuplicates
from bert_jax.apps.curate.plan import GOPHER_REPETITION, CurationConfig, Source, in_language
from bert_jax.data.corpus.sources import TextFiles


def get_config(
    *,
    files: str,
    near_duplicates: float = 0.8,
    language: str | None = None,
    max_dropped: float = 0.5,
) -> CurationConfig:
    """Returns the config for text, .jsonl and .gz files that match a pattern."""
    return CurationConfig(
        sources=(Source(name="documents", files=TextFiles(files)),),
        rule_sets=(*in_language(language), GOPHER_REPETITION),
        steps=(ExactDuplicates(), NearDuplicates(threshold=near_duplicates)),
        max_dropped=max_dropped,
    )
