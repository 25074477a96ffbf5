"""Runs `bert-jax few-shot`: learns a GLUE task from few examples of each class, in several ways."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bert_jax.config.flags import REQUIRED, flag, positional
from bert_jax.config.labeled_data import Glue, GlueName
from bert_jax.data.finetuning.glue_prompts import GLUE_PROMPTS
from bert_jax.errors import ConfigError, did_you_mean

logger = logging.getLogger(__name__)

HELP = "compare ways to learn a GLUE task from few examples of each class, with prompts and without"

_METHODS = (
    "tf-idf",
    "nearest-class-mean",
    "logistic-regression",
    "setfit",
    "zero-shot",
    "zero-shot-calibrated",
    "fine-tuning",
    "lora",
    "prompt-tuning",
    "demonstrations",
)
_ZERO_SHOT = ("zero-shot", "zero-shot-calibrated")

EPILOG = """examples:
  bert-jax few-shot sst2 exported --glue-dir glue_data --shots 0 --output runs/zero
  bert-jax few-shot rte exported --glue-dir glue_data --output runs/rte --prompt words.json

The protocol is as in LM-BFF (Gao et al. 2021): for each seed, K examples of each class are
sampled for training and K for dev, which selects the checkpoint; the dev split of GLUE is the test
set. The table has the mean and the standard deviation over the seeds. Methods:

  tf-idf                logistic regression on TF-IDF features; no model
  nearest-class-mean    nearest mean embedding of a class; the model is frozen
  logistic-regression   logistic regression on the embeddings; the model is frozen
  setfit                contrastive tuning of the encoder, then logistic regression
  zero-shot             masked-LM logits of the label words at the mask of the prompt; no training
  zero-shot-calibrated  the same, divided by the probabilities of inputs without content
  fine-tuning           a new classifier on the first token, all parameters trained
  lora                  the same, with LoRA
  prompt-tuning         the masked-LM head on label words, all parameters trained
  demonstrations        prompt-tuning, with examples of each class after the text, drawn from the
                        half of the class whose frozen embeddings are most similar

Prompts: lm-bff, or a .json file such as
{"template": "{text} It was {mask}.", "label_words": {"negative": ["bad"], "positive": ["good"]}}.
The same command resumes after a stop and does not repeat finished runs; --methods and --seeds may
be added later. Files written: results.json, table.md, table.html. Exit codes: 0 done, 1 a run
failed, 2 usage, 75 stopped by SIGTERM or Ctrl-C.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the task, the model, the sample, the methods and their hyperparameters."""

    task: str = positional("TASK", "sst2, cola, mnli, qnli, rte, mrpc or qqp")
    model: str = positional("MODEL", "pretrained model: a run folder or a Hugging Face folder")
    glue_dir: str = flag("DIR", "folder with CoLA/train.tsv and so on", REQUIRED)
    output: str = flag("FOLDER", "folder of all runs and results", REQUIRED)
    shots: int = flag("K", "training examples of each class; 0 for the zero-shot methods only", 16)
    seeds: tuple[int, ...] = flag(
        "N",
        "seeds of the samples and the runs (default: 13 21 42 87 100, as in LM-BFF)",
        (13, 21, 42, 87, 100),
    )
    methods: tuple[str, ...] = flag(
        "METHOD", "methods to compare (default: all)", (), choices=_METHODS
    )
    prompt: str = flag("NAME", "published prompt, or a .json file", "lm-bff")
    epochs: float | None = flag(
        "N",
        "training epochs (default: as many as give 200 updates; three times as many with lora)",
    )
    batch_size: int = flag("N", "sequences of a training batch", 8)
    learning_rate: float | None = flag(
        "RATE",
        "peak learning rate of fine-tuning, lora and prompt-tuning (default: that of "
        "`bert-jax finetune`)",
    )
    max_length: int = flag(
        "TOKENS",
        "maximum length of a sequence; not used by tf-idf, nearest-class-mean and "
        "logistic-regression",
        128,
    )

    def __post_init__(self) -> None:
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"--seeds {' '.join(map(str, self.seeds))}: expected different seeds")


def run(args: Arguments) -> int:
    """Runs the comparison; returns 0, 1 if a run failed, 75 if stopped."""
    from bert_jax.apps.studies.few_shot import FewShotConfig, FewShotStudy
    from bert_jax.apps.studies.jobs import run_study

    config = FewShotConfig(
        task=_glue_task(args),
        model=args.model,
        shots=args.shots,
        seeds=args.seeds,
        methods=args.methods or (_METHODS if args.shots else _ZERO_SHOT),
        prompt=args.prompt,
        epochs=args.epochs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        max_length=args.max_length,
    )
    output = Path(args.output)
    return run_study(FewShotStudy(config, output), output, model=args.model)


def _glue_task(args: Arguments) -> Glue:
    name = args.task.removeprefix("glue/")
    if name not in GLUE_PROMPTS:
        raise ConfigError(
            f"TASK {args.task}: {did_you_mean(name, GLUE_PROMPTS)}expected a classification task "
            f"of GLUE with a published prompt: {', '.join(GLUE_PROMPTS)}"
        )
    return Glue(task=cast(GlueName, name), folder=args.glue_dir)
