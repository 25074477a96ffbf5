"""Defines the config of `few-shot`, the names of its methods, and the arguments of its runs."""

from dataclasses import asdict, dataclass
from typing import Any

from bert_jax.apps.studies.job_runner import Job
from bert_jax.config.labeled_data import Glue
from bert_jax.data.finetuning.glue_prompts import load_prompt
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, check_range

ZERO_SHOT = ("zero-shot", "zero-shot-calibrated")
FEATURES = ("nearest-class-mean", "logistic-regression")
TFIDF = "tf-idf"
SETFIT = "setfit"
PROMPT_TUNING = "prompt-tuning"
DEMONSTRATIONS = "demonstrations"
TRAINED: dict[str, tuple[str, ...]] = {
    "fine-tuning": (),
    "lora": ("--method", "lora"),
    PROMPT_TUNING: (),  # with --prompt
    DEMONSTRATIONS: (),  # with --prompt, a file
}
"""Arguments of `bert-jax finetune` by method."""
METHODS = (TFIDF, *FEATURES, SETFIT, *ZERO_SHOT, *TRAINED)
"""The methods by the names that users type, from the cheapest on; `--help` describes them."""


@dataclass(frozen=True, kw_only=True)
class FewShotConfig:
    """Configures the comparison; `shots` 0 is zero-shot only.

    Attributes:
      prompt: name of a published prompt, or a .json file.
      epochs: training epochs of fine-tuning, LoRA and prompt tuning; None for the default of
        `finetune`. SetFit has its own epochs, batch size and learning rate.
      learning_rate: peak learning rate of these; None for the default of each method.
      max_length: maximum number of tokens in a sequence, except for TF-IDF and frozen features.
    """

    task: Glue
    model: str
    shots: int
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    prompt: str
    epochs: float | None = None
    batch_size: int = 8
    learning_rate: float | None = None
    max_length: int = 128

    def __post_init__(self) -> None:
        check_range("--shots", self.shots, at_least=0)
        if self.shots == 0 and not set(self.methods) <= set(ZERO_SHOT):
            raise ConfigError(
                f"--shots 0 and --methods {' '.join(self.methods)}; expected only "
                f"{' or '.join(ZERO_SHOT)}, which need no examples"
            )


def fine_tuning_job(config: FewShotConfig, name: str, seed: int, *method_arguments: str) -> Job:
    """Returns a run of `bert-jax finetune` in the folder `name` on the sample of a seed."""
    arguments = [f"glue/{config.task.task}", "--model", config.model, "--shots", str(config.shots)]
    arguments += ["--batch-size", str(config.batch_size), "--max-length", str(config.max_length)]
    if config.task.folder is not None:
        arguments += ["--glue-dir", config.task.folder]
    for flag, value in (("epochs", config.epochs), ("learning-rate", config.learning_rate)):
        arguments += [] if value is None else [f"--{flag}", str(value)]
    seeds = ("--seed", str(seed), "--split-seed", str(seed))
    return Job(name=name, arguments=(*arguments, *method_arguments, *seeds))


def settings_json(config: FewShotConfig) -> dict[str, Any]:
    """Returns the settings that may not change when a study is resumed; seeds and methods may."""
    fields = asdict(config)
    # The content of a file, so that results of another prompt are not mixed with its own.
    task = load_task(config.task).name
    fields["prompt"] = asdict(load_prompt(task, config.prompt))
    return {name: value for name, value in fields.items() if name not in ("seeds", "methods")}
