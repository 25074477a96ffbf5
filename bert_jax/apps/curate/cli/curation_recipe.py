"""Defines the flags that `bert-jax curate` and its Beam pipeline share, and makes their config."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bert_jax.config.flags import first_given, flag, given, positional
from bert_jax.data.corpus.prepare_flags import READING_FLAGS, ReadingArguments
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.apps.curate.plan import CurationConfig


@dataclass(frozen=True, kw_only=True)
class CurationRecipe(ReadingArguments):
    """Names a recipe of curation and its arguments, and how its text files are read."""

    recipe: str = positional("RECIPE", "name or file of a recipe of curation")
    arg: tuple[str, ...] = flag(
        "NAME=VALUE", "arguments of get_config in the recipe", (), action="extend"
    )

    def curation_config(self) -> "CurationConfig":
        """Returns the config of the recipe, whose text files are read as the flags say.

        Raises:
          ConfigError: the recipe or an argument is wrong, or it reads no text files.
        """
        from bert_jax.apps.curate.plan import check_curation
        from bert_jax.config.recipes import call_recipe, load_recipe
        from bert_jax.data.corpus.sources import TextFiles

        config = check_curation(
            call_recipe(load_recipe(self.recipe), self.arg, self.recipe), self.recipe
        )
        settings = given(self, *READING_FLAGS)
        kinds = {type(source.files).__name__ for source in config.sources}
        if settings and TextFiles.__name__ not in kinds:
            raise ConfigError(
                f"{first_given(self, *READING_FLAGS)} is for text and .jsonl files, but the recipe "
                f"{self.recipe} reads {', '.join(sorted(kinds))}, which say their own; remove it"
            )
        sources = tuple(
            replace(source, files=replace(source.files, **settings))
            if isinstance(source.files, TextFiles)
            else source
            for source in config.sources
        )
        return replace(config, sources=sources)
