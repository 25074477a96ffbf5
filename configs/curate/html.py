"""Curates HTML pages, in a folder or in web archives: main content, no bad pages, no duplicates.

    bert-jax curate html --output curated --arg files='docs/**/*.html'
    bert-jax curate html --output curated --arg files='crawl/*.warc.gz'

Needs the extra [curate]. A pattern that ends in `.warc` or `.wet`, before the suffix of the
compression, names archives. The rules are those of the recipe `web` without those that drop pages
with code: C4's drop every page with a curly bracket, and one of Gopher's every page with one
punctuation mark for four words.
"""

from dataclasses import replace

from bert_jax.apps.curate.formats.web import HtmlFiles, WarcFiles
from bert_jax.apps.curate.plan import (
    GOPHER_QUALITY,
    GOPHER_REPETITION,
    CurationConfig,
    ExactDuplicates,
    NearDuplicates,
    Source,
    in_language,
)
from bert_jax.text.files import uncompressed_name

QUALITY = replace(
    GOPHER_QUALITY,
    rules=tuple(rule for rule in GOPHER_QUALITY.rules if rule.signal != "tokens_with_letter"),
)


def get_config(
    *,
    files: str,
    near_duplicates: float = 0.8,
    language: str | None = None,
    max_dropped: float = 0.95,
) -> CurationConfig:
    """Returns the config for the pages or archives that match a pattern."""
    is_archive = uncompressed_name(files).removesuffix(".*").endswith((".warc", ".wet"))
    return CurationConfig(
        sources=(Source(name="html", files=WarcFiles(files) if is_archive else HtmlFiles(files)),),
        rule_sets=(*in_language(language), QUALITY, GOPHER_REPETITION),
        steps=(ExactDuplicates(), NearDuplicates(threshold=near_duplicates)),
        max_dropped=max_dropped,
    )
