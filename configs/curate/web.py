"""Curates web text: C4's rules for lines, the rules of Gopher and FineWeb, no near duplicates.

    bert-jax curate web --output curated --arg files='crawl/*.jsonl.gz'

The stop words and the end marks are English: for another language, leave out
`GOPHER_QUALITY` or replace its rules. The rules for documents see the lines that C4's rules keep:
all of these end a sentence, and there is no blank line between them.

C4's rule for repeated lines (`RepeatedLines`) is left out: Penedo et al. 2024 (FineWeb) found that
removing them from the whole corpus, after near duplicates, made models worse.
"""

from bert_jax.apps.curate.exact_duplicates import ExactDuplicates
from bert_jax.apps.curate.near_duplicates import NearDuplicates
from bert_jax.apps.curate.plan import (
    FINEWEB_QUALITY,
    GOPHER_QUALITY,
    GOPHER_REPETITION,
    C4Lines,
    CurationConfig,
    Source,
    in_language,
)
from bert_jax.data.corpus.sources import TextFiles


def get_config(
    *,
    files: str,
    near_duplicates: float = 0.8,
    language: str | None = None,
    max_dropped: float = 0.95,
) -> CurationConfig:
    """Returns the config for files that match a pattern, one document for each JSON line."""
    return CurationConfig(
        sources=(Source(name="web", files=TextFiles(files)),),
        lines=C4Lines(),
        rule_sets=(*in_language(language), GOPHER_QUALITY, GOPHER_REPETITION, FINEWEB_QUALITY),
        steps=(ExactDuplicates(), NearDuplicates(threshold=near_duplicates)),
        max_dropped=max_dropped,
    )
