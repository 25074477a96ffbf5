"""Curates docstrings for `bert-jax quickstart`, training text before held-out text.

    bert-jax curate docstrings --output quickstart/curated \\
        --arg train=quickstart/corpus/train.jsonl heldout=quickstart/corpus/heldout.jsonl

A document is a module. A quarter of the paragraphs are repetitions, for example docstrings that a
method has in common with the one that it overrides. Of equal paragraphs the one in the training
text is retained, so the held-out text has none of them.
"""

from bert_jax.apps.curate.exact_duplicates import RepeatedParagraphs
from bert_jax.apps.curate.near_duplicates import NearDuplicates
from bert_jax.apps.curate.plan import CurationConfig, Rule, RuleSet, Source
from bert_jax.data.corpus.sources import TextFiles

LONG_ENOUGH = RuleSet(name="docstrings", rules=(Rule(signal="words", at_least=40),))


def get_config(*, train: str, heldout: str) -> CurationConfig:
    """Returns the config for two files, of which the first becomes the first shard.

    Args:
      train: the file of the training corpus.
      heldout: the file of the held-out corpus.
    """
    return CurationConfig(
        sources=(
            Source(name="train", files=TextFiles(train)),
            Source(name="heldout", files=TextFiles(heldout)),
        ),
        rule_sets=(LONG_ENOUGH,),
        steps=(RepeatedParagraphs(), NearDuplicates()),
        max_dropped=0.9,
    )
