"""Curates a dump of Wikipedia: text passages of articles, no short articles, no duplicates.

    bert-jax curate wikipedia --output curated --arg files='enwiki-*-multistream*.xml*.bz2'

Needs the extra [curate]. With the file `...-multistream-index.txt.bz2` in the same folder, several
processes read one dump. `content=all` retains headings and lists.
"""

from typing import Literal

from bert_jax.apps.curate.formats.wikipedia import WikipediaDump
from bert_jax.apps.curate.plan import CurationConfig, Rule, RuleSet, Source

# Dolma (Soldaini et al. 2024) drops articles of up to 25 words.
LONG_ENOUGH = RuleSet(name="Wikipedia", rules=(Rule(signal="words", at_least=26),))


def get_config(
    *, files: str, content: Literal["prose", "all"] = "prose", max_dropped: float = 0.5
) -> CurationConfig:
    """Returns the config for the dumps that match a pattern.

    Args:
      content: "prose" for text passages only, as BERT used them, or "all" for headings and lists.
    """
    return CurationConfig(
        sources=(Source(name="wikipedia", files=WikipediaDump(files, content=content)),),
        rule_sets=(LONG_ENOUGH,),
        max_dropped=max_dropped,
    )
