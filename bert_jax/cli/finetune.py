"""Runs `bert-jax finetune`: trains a pretrained encoder on a task with labeled examples.

Its TASK text2text trains T5 or BART on two columns of texts, with the recipe text_to_text.
"""

import argparse
import json
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from bert_jax.cli.arguments import (
    COLUMNS,
    CONTAMINATION,
    PRETRAINED,
    TASKS_HELP,
    OverrideArguments,
    RunArguments,
    TaskArguments,
)
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.config.flags import (
    check_needs,
    first_given,
    flag,
    flag_name,
    given,
    positional,
    switch,
)
from bert_jax.config.labeled_data import (
    Columns,
    FewShot,
    Glue,
    JointWindows,
    Snli,
    TaskConfig,
    TrainingFile,
    WindowPooling,
    Windows,
    make_truncation,
)
from bert_jax.config.objectives import ListwiseLoss
from bert_jax.config.prompts import Prompt
from bert_jax.config.tuning import METHODS, MethodName, TuningMethod
from bert_jax.data.finetuning.glue_prompts import load_prompt, with_demonstrations
from bert_jax.errors import ConfigError

HELP = "fine-tune an encoder, T5 or BART on your own labeled files, GLUE, SQuAD or CoNLL"

EPILOG = f"""examples:
  bert-jax finetune --train train.csv --dev dev.csv --text review --label sentiment \\
      --model exported --run runs/reviews
  bert-jax finetune columns --train posts.jsonl --dev dev.jsonl --text post --label topics \\
      --kind multi-label --model exported --run runs/topics
  bert-jax finetune glue/rte --glue-dir glue_data --model exported --run runs/rte --epochs 3
  bert-jax finetune glue/rte --glue-dir glue_data --teacher runs/rte --teacher-layers 0,2,5 \\
      --run runs/rte-3-layers
  bert-jax finetune glue/mrpc --glue-dir glue_data --model exported --method lora --run runs/mrpc
  bert-jax finetune text2text --train train.csv --dev dev.csv --source article \\
      --target summary --model t5 --run runs/summaries
  bert-jax finetune --config multi_task --run runs/four \\
      --arg model=exported glue_dir=glue_data conll=conll2003

{TASKS_HELP}  text2text  with --train, --dev, --source, --target: pairs of texts, for T5 and BART

The run folder then holds the checkpoint with the best dev score, predictions/dev.jsonl and
test.jsonl (for text2text: predictions/columns-dev.jsonl), evaluation.json and report.html.
`bert-jax export runs/rte --output rte` writes it as a Hugging Face folder. The same
command resumes a run that was stopped. Exit codes: 0 done, 1 failure, 2 usage, 75 stopped by
SIGTERM or Ctrl-C after saving a checkpoint.

The fourth command distills the run of the third: a smaller model learns from the labels and from
the predictions of a teacher, a model that was fine-tuned on the same task. The fifth command
trains a few new parameters (LoRA); its checkpoints hold only these and the path of the model.

A recipe, given with --config, replaces TASK and its flags. The recipe above trains one encoder on
several tasks, with one head for each task.
"""

COMMON = (
    *("train", "dev", "text", "label", "model", "run"),
    *("epochs", "batch_size", "learning_rate", "max_length", "method"),
)

TEXT_TO_TEXT = "text2text"
"""The TASK of pairs of texts for encoder-decoders."""

_MODEL_AND_DATA = ("model", "teacher", "teacher_layers")
_NUMBERS = ("epochs", "batch_size", "learning_rate", "max_length", "max_target_length")
_LONG_TEXTS = ("truncation", "window_pooling", "num_windows", "window_overlap")
_LOSS_AND_CHOICE = ("loss", "class_weights", "label_smoothing", "metric", "patience", "calibrate")
_SETTINGS = (*_MODEL_AND_DATA, *_NUMBERS, *_LONG_TEXTS, *_LOSS_AND_CHOICE, "seed")
"""Flags with the names of arguments of the presets, which have defaults for the others."""

_FEW_SHOT = ("prompt", "demonstrations", "shots", "split_seed", "train_file")
_METHODS_OF_FLAG: dict[str, tuple[MethodName, ...]] = {
    "rank": ("lora", "dora"),
    "alpha": ("lora", "dora"),
    "dropout": ("lora", "dora"),
    "target": ("lora", "dora"),
    "initial_text": ("prompt",),
}
"""The methods that have a flag."""
_METHOD = ("frozen_encoder", "method", *_METHODS_OF_FLAG)

_TEXT_TO_TEXT_FILES = ("train", "dev", "test", "encoding")
# Flag of text2text -> the argument of its recipe.
_TEXT_TO_TEXT_SETTINGS = {
    "batch_size": "batch_size",
    "learning_rate": "learning_rate",
    "max_length": "seq_length",
    "max_target_length": "target_length",
    "seed": "seed",
}
_TEXT_TO_TEXT_EXAMPLE = "--source article --target summary"


def _layer_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        message = f"{text!r}, expected numbers of layers such as 0,2,4"
        raise argparse.ArgumentTypeError(message) from None


_training = partial(flag, group="training")
_long = partial(flag, group="long texts")
_method = partial(flag, group="method")
_few_shot = partial(flag, group="few examples")
_teacher = partial(flag, group="distillation")


@dataclass(frozen=True, kw_only=True)
class Arguments(OverrideArguments, RunArguments, TaskArguments):
    """Names the task or a recipe, the model, and how it is trained."""

    task: str = positional(
        "TASK", "glue/NAME, snli, squad, conll, swag, columns or text2text", COLUMNS
    )
    config: str | None = flag("FILE", "recipe, instead of TASK")
    model: str | None = flag("", PRETRAINED)
    teacher: str | None = _teacher(
        "MODEL", "teacher for distillation: a model that was fine-tuned on this task"
    )
    teacher_layers: tuple[int, ...] | None = _teacher(
        "N,N,...",
        "layers of the teacher, counted from 0, that initialize a smaller model; instead of "
        "--model",
        type=_layer_numbers,
    )
    contamination: str | None = flag("DIR", CONTAMINATION)
    epochs: float | None = _training(
        "N",
        "training epochs (default: 3, or with few examples as many as give 200 updates; three "
        "times as many with a --method other than full; text2text: always 3)",
    )
    batch_size: int | None = _training("N", "sequences of a batch (default: 32)")
    learning_rate: float | None = _training(
        "RATE",
        "peak learning rate (default: 5e-5, or the rate of --method; text2text: 1e-3, or "
        "3e-5 with --arg adafactor=false)",
    )
    max_length: int | None = _training(
        "TOKENS",
        "maximum length of a sequence (default: 128, up to 256 for longer training examples; 384 "
        "for question answering; not more than the model allows; text2text: 512)",
    )
    class_weights: str | None = _training(
        "WEIGHTS",
        "how much the examples of a class count: balanced, if all classes should count equally, "
        "or numbers of labels, as in yes=3,no=1 (default: all 1)",
    )
    label_smoothing: float | None = _training(
        "FRACTION", "fraction of a label that is spread evenly over all classes (default: 0)"
    )
    loss: ListwiseLoss | None = _training(
        "",
        "loss of --kind ranking that compares the texts of a query, which rows with the same "
        "--text have (default: binary cross-entropy of each row)",
    )
    metric: str | None = _training(
        "NAME",
        "metric of dev by which the best checkpoint is chosen, such as f1_macro or loss (default: "
        "the first of the task, or f1_macro if a class is rare)",
    )
    patience: int | None = _training(
        "N", "evaluations without a better metric after which training ends (default: none)"
    )
    calibrate: bool = switch(
        "fit a temperature for the probabilities on dev, and a decision threshold for two classes "
        "if --metric is f1, f1_macro or matthews",
        group="training",
    )
    seed: int | None = _training("", "random seed (default: 0)")
    source: str | None = flag(
        "COLUMN",
        f"column that the encoder reads, for the task {TEXT_TO_TEXT} only; --target is the "
        "column that the decoder learns to write",
        group=TEXT_TO_TEXT,
    )
    max_target_length: int | None = flag(
        "TOKENS",
        f"maximum length of a text that the decoder writes, for the task {TEXT_TO_TEXT} only "
        "(default: 64)",
        group=TEXT_TO_TEXT,
    )
    truncation: Literal["head", "tail", "head+tail", "windows", "hierarchical"] | None = _long(
        "",
        "part that is read of a text longer than --max-length, in classification and "
        "regression; with windows, all of it, in overlapping sequences; with hierarchical, its "
        "first windows together, with a small Transformer over them (default: head)",
    )
    window_pooling: WindowPooling | None = _long(
        "", "how to combine the predictions for the windows of a text (default: mean)"
    )
    num_windows: int | None = _long(
        "N", "windows of a text that are read with --truncation hierarchical (default: 8)"
    )
    window_overlap: int | None = _long(
        "TOKENS",
        "tokens that neighboring windows have in common; for tagging, question answering and "
        "--truncation windows or hierarchical (default: 128, at most half a window)",
    )
    frozen_encoder: bool = switch(
        "train only the head, on features that the encoder computes once: much faster, "
        "at a lower quality (try --learning-rate 1e-3 and more epochs)",
        group="method",
    )
    method: MethodName | None = _method(
        "",
        "part of the encoder that is trained; all methods except full train a few parameters "
        "besides the head, and their checkpoints need the model at its path (default: full)",
    )
    rank: int | None = _method("N", "rank of the matrices of lora and dora (default: 8)")
    alpha: float | None = _method(
        "NUMBER", "numerator of the scale alpha / rank of lora and dora (default: 16)"
    )
    dropout: float | None = _method(
        "RATE", "dropout before the matrices of lora and dora (default: 0.1)"
    )
    target: tuple[str, ...] = _method(
        "NAME",
        "with --method lora or dora: adapted layers, by the end of their paths, such as "
        "attention/output (default: query value); with the task text2text: the column that the "
        "decoder learns to write",
        (),
    )
    initial_text: str | None = _method(
        "TEXT",
        "with --method prompt: text whose token embeddings initialize the vectors "
        "(default: random vectors)",
    )
    prompt: str | None = _few_shot(
        "NAME",
        "template with a mask and label words, which the masked-LM head is trained to predict "
        "in place of a new classifier: a published prompt of a GLUE task, such as lm-bff, or a "
        ".json file with template and label_words",
    )
    demonstrations: int | None = _few_shot(
        "N",
        "append training examples to each text of --prompt, one of each class; a prediction "
        "is the mean over N draws (16 in LM-BFF)",
    )
    shots: int | None = _few_shot(
        "K",
        "training examples of each class that are sampled, and as many for dev; the dev split "
        "becomes the test split (default: all examples)",
    )
    split_seed: int | None = _few_shot("N", "seed of the sample of --shots (default: 13)")
    train_file: str | None = _few_shot(
        "FILE",
        "JSON lines with id, text, text_pair and label or logits, which replace the training "
        "examples of the task; a model is distilled from logits, one for each class",
    )

    def __post_init__(self) -> None:
        if self.task != COLUMNS and self.config is not None:
            raise ConfigError(f"TASK {self.task} and --config {self.config}: expected one of them")
        if self.task == TEXT_TO_TEXT:
            self._check_text_to_text()
            return
        self._check_columns_of_texts()
        if any(assignment.startswith("data.window_overlap") for assignment in self.set):
            name = "--arg window_overlap=TOKENS" if self.config else "--window-overlap TOKENS"
            raise ConfigError(
                f"--set data.window_overlap is applied after the updates are counted; use {name}"
            )
        if self.config is not None:
            self._check_recipe()
        else:
            self._check_task()

    def _check_recipe(self) -> None:
        name = first_given(self, *_SETTINGS, *_FEW_SHOT, *_METHOD) or next(
            map(flag_name, self.data_flags()), None
        )
        if name:
            raise ConfigError(
                f"{name} cannot be combined with --config; set the recipe's arguments with --arg "
                "NAME=VALUE, and fields of its config with --set FIELD=VALUE"
            )

    def _check_task(self) -> None:
        """Checks the flags of a task of an encoder."""
        if self.task.endswith(".py"):
            raise ConfigError(f"a recipe is given with --config: finetune --config {self.task}")
        if self.arg:
            raise ConfigError(f"--arg is for recipes given with --config, not for {self.task}")
        if self.max_target_length is not None:
            raise ConfigError(
                f"--max-target-length is an option of {TEXT_TO_TEXT}, not of {self.task}"
            )
        check_needs(self, "teacher", "teacher_layers")
        if self.teacher_layers and self.model is not None:
            raise ConfigError(
                f"--model {self.model} and --teacher-layers: expected one of them, the model or "
                "the layers of the teacher from which to start"
            )
        if not self.teacher_layers and self.model is None:
            advice = ", or --teacher-layers" if self.teacher is not None else ""
            raise ConfigError(f"{self.task} needs --model, the pretrained model{advice}")
        if self.frozen_encoder and self.method:
            raise ConfigError(f"--frozen-encoder and --method {self.method}: expected one of them")
        for name, methods in _METHODS_OF_FLAG.items():
            if given(self, name) and (self.method or "full") not in methods:
                raise ConfigError(
                    f"{flag_name(name)} does not apply to --method {self.method or 'full'}; "
                    f"expected --method {' or '.join(methods)}"
                )
        check_needs(self, "prompt", "demonstrations")
        check_needs(self, "shots", "split_seed")

    def _check_columns_of_texts(self) -> None:
        """Raises ConfigError if the flags of text2text are given with another task or a recipe."""
        task = f"--config {self.config}" if self.config else self.task
        if self.source is not None:
            remedy = "--arg source=COLUMN" if self.config else f"the task {TEXT_TO_TEXT}"
            raise ConfigError(
                f"--source {self.source} is a flag of the task {TEXT_TO_TEXT}, not of {task}; "
                f"expected {remedy}, or no --source"
            )
        if self.target and self.method is None and not self.config:
            raise ConfigError(
                f"--target {' '.join(self.target)} needs --method lora or dora, whose layers it "
                f"names, or the task {TEXT_TO_TEXT}, whose column it names; the task is {task}"
            )

    def _check_text_to_text(self) -> None:
        """Raises a ConfigError for flags that text2text does not have, and for --arg of a flag."""
        others = [name for name in self.data_flags() if name not in _TEXT_TO_TEXT_FILES]
        allowed = {*_TEXT_TO_TEXT_SETTINGS, "model", "epochs", "target"}
        others += [
            name
            for name in given(self, *_SETTINGS, *_FEW_SHOT, *_METHOD, "contamination")
            if name not in allowed
        ]
        if others:
            raise ConfigError(f"{flag_name(others[0])} is not an option of {TEXT_TO_TEXT}")
        for name in ("model", "train", "dev", "source"):
            if getattr(self, name) is None:
                raise ConfigError(f"{TEXT_TO_TEXT} needs --{name}")
        if len(self.target) != 1:
            count = f"found {len(self.target)}: {', '.join(self.target)}"
            raise ConfigError(
                f"{TEXT_TO_TEXT} needs one column after --target, the one that the decoder learns "
                f"to write, as in {_TEXT_TO_TEXT_EXAMPLE}; "
                f"{count if self.target else 'found no --target'}"
            )
        names = ("model", *_TEXT_TO_TEXT_FILES, "source", "target")
        flags = {name: flag_name(name) for name in names}
        flags |= {argument: flag_name(name) for name, argument in _TEXT_TO_TEXT_SETTINGS.items()}
        flags["steps"] = "--epochs"
        for assignment in self.arg:
            name = assignment.partition("=")[0]
            # Without --epochs, steps may be given: there is no flag for a number of updates.
            if name in flags and not (name == "steps" and self.epochs is None):
                raise ConfigError(f"--arg {assignment}: {TEXT_TO_TEXT} sets it with {flags[name]}")


def run(args: Arguments) -> int:
    """Fine-tunes and returns the exit code of the run."""
    experiment = args.tracked(make_experiment(args))
    from bert_jax.parallel.processes import config_from_environment, initialize

    # Before anything uses the devices: afterwards JAX cannot connect its processes any more.
    initialize(config_from_environment())
    from bert_jax.train.run import run as train

    if args.contamination is not None:
        from bert_jax.data.corpus.contamination.found_items import FoundItems, copy_items

        # Before --overwrite removes anything: it raises for a folder without the file.
        FoundItems.read(args.contamination)
        folder = args.clear_run_folder(experiment)
        copy_items([args.contamination], folder)
    else:
        folder = args.clear_run_folder(experiment)
    return train(experiment, folder, args.checkpoints)


def make_experiment(args: Arguments) -> Experiment:
    """Returns the config of the run that the flags describe.

    Raises:
      ConfigError: the flags do not fit the task, or a value is out of range.
    """
    if args.config is not None:
        return args.experiment_from(args.config)
    if args.task == TEXT_TO_TEXT:
        return _text_to_text_experiment(args)
    from bert_jax.config.tuning import FROZEN_ENCODER, TuningConfig
    from bert_jax.train.presets import DEFAULT_EPOCHS, fine_tuning_experiment

    config, settings = _sampled_task(args), given(args, *_SETTINGS)
    if any(assignment.startswith("train.phases") for assignment in args.set):
        settings.setdefault("epochs", DEFAULT_EPOCHS)  # --set says how long to train
    method = tuning_method(args)
    tuning = FROZEN_ENCODER if args.frozen_encoder else TuningConfig(method=method)
    settings["truncation"] = make_truncation(
        settings.get("truncation", "head"),
        settings.pop("window_pooling", None),
        settings.pop("num_windows", None),
    )
    settings["prompt"] = _prompt(args)
    model = settings.pop("model", None)
    experiment = fine_tuning_experiment(config, model, **settings, tuning=tuning)
    _check_window_overlap(experiment, args)
    return override(experiment, args.set)


def tuning_method(args: Arguments) -> TuningMethod:
    """Returns the method that the flags describe; ConfigError if a value is out of range."""
    fields = given(args, *_METHODS_OF_FLAG)
    if "target" in fields:
        fields["targets"] = fields.pop("target")
    if "initial_text" in fields:
        fields["initial_ids"] = _initial_ids(fields.pop("initial_text"), args.model or args.teacher)
    return METHODS[args.method or "full"](**fields)


def _initial_ids(text: str, model: str | None) -> tuple[int, ...]:
    """Returns the ids of a text with its special tokens, as peft's `PromptTuningInit.TEXT`."""
    from bert_jax.pretrained.initial import tokenizer_folder
    from bert_jax.text.load_tokenizer import load_tokenizer

    assert model is not None
    tokenizer = load_tokenizer(tokenizer_folder(model))
    ids = tokenizer.encode_ids([text])[0]
    if not len(ids):
        raise ConfigError(f"--initial-text {text!r} has no tokens; expected some words")
    return tuple(map(int, tokenizer.build_inputs_with_special_tokens(ids, None)))


def _prompt(args: Arguments) -> Prompt | None:
    """Returns the prompt of --prompt with the demonstrations of --demonstrations."""
    if args.prompt is None:
        return None
    return with_demonstrations(load_prompt(args.task, args.prompt), args.demonstrations)


def _sampled_task(args: Arguments) -> TaskConfig:
    """Returns the task with the sample of --shots and the examples of --train-file, if given."""
    config = args.task_config()
    for name in given(args, "shots", "train_file"):
        if not isinstance(config, Glue | Snli | Columns):
            raise ConfigError(
                f"{flag_name(name)} is for classification, but the task is {args.task}; expected "
                "glue/NAME, snli or columns"
            )
    if args.shots is not None:
        assert isinstance(config, Glue | Snli | Columns)
        seed = FewShot.seed if args.split_seed is None else args.split_seed
        config = FewShot(task=config, shots=args.shots, seed=seed)
    if args.train_file is not None:
        assert isinstance(config, Glue | Snli | Columns | FewShot)
        config = TrainingFile(task=config, file=args.train_file)
    return config


def _check_window_overlap(experiment: Any, args: Arguments) -> None:
    """Raises ConfigError if an overlap was given for texts that are not cut into windows."""
    from bert_jax.tasks.registry import kind_of_head

    has_windows = isinstance(experiment.data.truncation, Windows | JointWindows)
    has_windows |= kind_of_head(experiment.objective.head).reads_windows
    if args.window_overlap is not None and not has_windows:
        raise ConfigError(
            f"--window-overlap {args.window_overlap}: texts of {args.task} are not cut into "
            "windows; remove it, or add --truncation windows or hierarchical"
        )


def _text_to_text_experiment(args: Arguments) -> Experiment:
    """Returns the run of the recipe text_to_text on the columns of --train and --dev."""
    from bert_jax.config.recipes import call_recipe, load_recipe
    from bert_jax.data.finetuning.readers.tabular_files import read_table

    numbers = given(args, *_TEXT_TO_TEXT_SETTINGS)
    settings = {_TEXT_TO_TEXT_SETTINGS[name]: value for name, value in numbers.items()}
    batch_size = settings.setdefault("batch_size", 32)
    table = read_table(str(args.train), args.encoding)
    epochs = 3 if args.epochs is None else args.epochs
    # Rounded, because batches of an encoder-decoder go on from one epoch to the next, without a
    # smaller last one.
    steps = max(1, round(epochs * len(table.rows) / batch_size))
    values = {**given(args, *_TEXT_TO_TEXT_FILES, "source"), "target": args.target[0]}
    # As JSON, so that a column named 1 stays a text; `model` is always read as a text.
    assignments = [f"model={args.model}"]
    assignments += [
        f"{name}={value if name == 'encoding' else json.dumps(value)}"
        for name, value in {**values, "steps": steps, **settings}.items()
    ]
    recipe = "text_to_text"
    experiment = call_recipe(load_recipe(recipe), [*assignments, *args.arg], recipe)
    return override(experiment, args.set)
