"""Lists published prompts for GLUE's tasks, LM-BFF's, and reads prompts from files.

Source: table 1 and `run_experiment.sh` of LM-BFF's release (Gao et al. 2021). LM-BFF always removes
the last character of the first text of an entailment task; here it is removed only if it is
punctuation.
"""

import dataclasses
from pathlib import Path
from typing import Any

from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.prompts import (
    Demonstrations,
    LabelWords,
    Prompt,
    SimilarExamples,
)
from bert_jax.errors import ConfigError, UserError, did_you_mean
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json

LM_BFF = "lm-bff"
"""The name by which users choose LM-BFF's manual templates."""


def glue_prompt(task: str, name: str = LM_BFF) -> Prompt:
    """Returns the published prompt of a GLUE task.

    Raises:
      ConfigError: there is no prompt for the task, or `name` is not the name of the prompts.
    """
    if task not in GLUE_PROMPTS:
        raise ConfigError(
            f"there is no prompt for the task {task!r}; {did_you_mean(task, GLUE_PROMPTS)}tasks "
            f"with prompts: {', '.join(GLUE_PROMPTS)}"
        )
    if name != LM_BFF:
        raise ConfigError(
            f"there is no prompt {name!r} for {task}; {did_you_mean(name, [LM_BFF])}expected "
            f"{LM_BFF}, or a file that ends in .json"
        )
    return GLUE_PROMPTS[task]


def load_prompt(task: str, name_or_file: str) -> Prompt:
    """Returns a published prompt of a GLUE task by its name, or reads one from a .json file.

    Args:
      task: a task as in "glue/rte"; tasks that are not of GLUE have no published prompts.
    """
    if name_or_file.endswith(".json"):
        return read_prompt(Path(name_or_file))
    return glue_prompt(task.removeprefix("glue/"), name_or_file)


def with_demonstrations(prompt: Prompt, num_samples: int | None) -> Prompt:
    """Returns the prompt with demonstrations, of which prediction has `num_samples` draws.

    None leaves the prompt as it is. A limit of the texts that the prompt has is kept.
    """
    if num_samples is None:
        return prompt
    config = dataclasses.replace(prompt.demonstrations or Demonstrations(), num_samples=num_samples)
    return dataclasses.replace(prompt, demonstrations=config)


def similar_demonstrations(prompt: Prompt, vectors: str) -> Prompt:
    """Returns the prompt with demonstrations that are chosen by the vectors in a file."""
    config = prompt.demonstrations or Demonstrations()
    config = dataclasses.replace(config, selection=SimilarExamples(vectors=vectors))
    return dataclasses.replace(prompt, demonstrations=config)


def write_prompt(path: Path, prompt: Prompt) -> None:
    """Writes a prompt as JSON for `read_prompt`."""
    data: dict[str, Any] = {
        "template": prompt.template,
        "label_words": {each.label: list(each.words) for each in prompt.label_words},
        "average_tokens": prompt.tokens_of_words == "averaged_tokens",
    }
    if prompt.demonstrations is not None:
        data["demonstrations"] = to_json(prompt.demonstrations)
    write_json(path, data)


def read_prompt(path: Path) -> Prompt:
    """Reads a prompt from a JSON file: {"template": "...", "label_words": {label: [word, ...]}}.

    With "average_tokens": true, label words may be several tokens. "demonstrations" is an object
    with the fields of `Demonstrations`.

    Raises:
      UserError: the file cannot be read, or a key is missing, unknown or has another type.
      ConfigError: the prompt is invalid; see `Prompt`.
    """
    data = read_json(path)
    keys = ("template", "label_words", "average_tokens", "demonstrations")
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a JSON object with the keys template and label_words")
    for key in data:
        if key not in keys:
            raise UserError(
                f"{path}: unknown key {key!r}; {did_you_mean(key, keys)}the keys are "
                f"{', '.join(keys)}"
            )
    template, words = data.get("template"), data.get("label_words")
    average = data.get("average_tokens", False)
    if (
        not isinstance(template, str)
        or not isinstance(words, dict)
        or not all(isinstance(each, list) for each in words.values())
        or not all(isinstance(word, str) for each in words.values() for word in each)
        or not isinstance(average, bool)
    ):
        raise UserError(
            f'{path}: expected "template", a string, and "label_words", an object with a list of '
            'words for each label; "average_tokens" is true or false'
        )
    demonstrations = data.get("demonstrations")
    return Prompt(
        template=template,
        label_words=tuple(LabelWords(label=k, words=tuple(v)) for k, v in words.items()),
        tokens_of_words="averaged_tokens" if average else "single_token",
        demonstrations=None
        if demonstrations is None
        else from_json(Demonstrations, demonstrations, f"{path}: demonstrations"),
    )


def _prompt(template: str, **words: str) -> Prompt:
    """Makes a prompt with one word for each label."""
    label_words = tuple(LabelWords(label=label, words=(word,)) for label, word in words.items())
    return Prompt(template=template, label_words=label_words)


_ENTAILMENT = "{text|no_punctuation}?{mask}, {text_pair|lower_first}"
_SIMILARITY = "{text}{mask}, {text_pair|lower_first}"

GLUE_PROMPTS: dict[str, Prompt] = {
    "sst2": _prompt("{text} It was{mask}.", negative="terrible", positive="great"),
    "cola": _prompt("{text} This is{mask}.", unacceptable="incorrect", acceptable="correct"),
    "mnli": _prompt(_ENTAILMENT, entailment="Yes", neutral="Maybe", contradiction="No"),
    "qnli": _prompt(_ENTAILMENT, entailment="Yes", not_entailment="No"),
    "rte": _prompt(_ENTAILMENT, entailment="Yes", not_entailment="No"),
    "mrpc": _prompt(_SIMILARITY, not_equivalent="No", equivalent="Yes"),
    "qqp": _prompt(_SIMILARITY, not_duplicate="No", duplicate="Yes"),
}
"""Task -> prompt. STS-B is a regression, and WNLI has no published prompt."""
