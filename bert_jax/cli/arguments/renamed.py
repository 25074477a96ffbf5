"""Answers verbs and flags of earlier versions with their new names.

A command line is checked before it is parsed, so an old name never reaches argparse, whose message
("unrecognized arguments") would not help.
"""

from collections.abc import Sequence

RENAMED_VERBS = {
    "explain": "show-config",
    "data show": "data inspect",
    "import": "convert",
    "vocab learn": "tokenizer train",
}
"""Old verb -> new verb."""

_TEXT_FILES = {"--documents-by": "--document-unit"}
_RECIPE = {"--with": "--arg"}
_SEEDS = {"--seeds": "--num-seeds N, a count: the seeds are 0 to N-1"}
_FISHER = {"--prepared": "--corpus", "--texts": "--num-examples"}

RENAMED_FLAGS: dict[str, dict[str, str]] = {
    "tokenizer train": {**_TEXT_FILES, "--size": "--vocab-size"},
    "prepare": {**_TEXT_FILES, "--vocab": "--tokenizer"},
    "show-config": _RECIPE,
    "plan": _RECIPE,
    "pretrain": _RECIPE,
    "finetune": _RECIPE,
    "glue": {"--lanes": "--num-shards", "--lane": "--shard", **_SEEDS},
    "sweep": _SEEDS,
    "data inspect": {"--vocab": "--tokenizer", "--show": "--num-examples"},
    "predict": {
        "--model": "the first argument, without a flag: bert-jax predict MODEL TEXT",
        "--long": "--truncation",
        "--pool": "--window-pooling",
        "--stride": "--window-overlap",
        "--no-answer": "--allow-no-answer",
    },
    "fill-mask": {"--top": "--top-k"},
    "fisher": _FISHER,
    "forgetting": _FISHER,
    "simulate": {
        **_RECIPE,
        "--drop": "--missing-host",
        "--hosts-after": "--hosts-after-restart",
    },
}
"""Verb -> {old flag: new flag, or the argument that replaces it}."""


def renamed_message(words: Sequence[str]) -> str | None:
    """Returns the error message for a command line that uses an old name, None if it uses none.

    Args:
      words: the command line without the name of the program.
    """
    for old_verb, new_verb in RENAMED_VERBS.items():
        if _starts_with(words, old_verb):
            return f"the verb `{old_verb}` is now called `{new_verb}`"
    for verb, flags in RENAMED_FLAGS.items():
        if not _starts_with(words, verb):
            continue
        for word in words:
            if word == "--":  # what follows is text, not flags
                break
            flag = word.partition("=")[0]
            if flag in flags:
                is_flag = flags[flag].startswith("--")
                return f"{flag} of `{verb}` is now {'called ' * is_flag}{flags[flag]}"
    return None


def _starts_with(words: Sequence[str], verb: str) -> bool:
    names = verb.split()
    return list(words[: len(names)]) == names
