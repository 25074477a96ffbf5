"""Compares a small pretrained T5 and BART with the same networks that were not pretrained.

    python bench/text_to_text.py --train 'train/*.txt.gz' --heldout 'held/*.txt.gz' --output study

T5 and BART (2 + 2 layers of width 128) are pretrained on novels, then fine-tuned with each seed on
two tasks whose sentences are from other novels. The untrained twin has the same network, tokenizer,
examples and hyperparameters, but fine-tuning starts from random parameters. The tasks, as text:

- word order: whether seven neighboring words of the sentence were shuffled ("shuffled" or "as
  written"). The score is the accuracy: a text that is neither label is wrong, and always writing
  the same label scores 50.0.
- missing words: the sentence has a gap of three words, which the decoder writes. The score is the
  token F1.

The train and dev sets of a task come from different novels of --heldout. A finished run in --output
is not repeated, so the same command continues after a stop; with other options, use another folder.
Prints a Markdown table of the scores on dev, in percent.
"""

import argparse
import csv
import dataclasses
import gzip
import itertools
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

TOKENIZERS = {"t5": "unigram", "bart": "bpe"}
# T5 gets more updates, because they take less time: its targets are short.
PRETRAINING_STEPS = {"t5": 4000, "bart": 1500}
TWINS = {"pretrained": True, "untrained twin": False}
GAP = "***"
WORDS_PER_SENTENCE = range(9, 15)
NUM_SHUFFLED = 7
MAX_LENGTH, MAX_TARGET_LENGTH = 32, 12
TOKENIZER_NOVELS = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Trains what --output does not have yet, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", required=True, help="glob of the novels for pretraining")
    parser.add_argument("--heldout", required=True, help="glob of the novels of the tasks")
    parser.add_argument("--output", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--models", nargs="+", choices=TOKENIZERS, default=list(TOKENIZERS))
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--num-examples", type=int, default=4000, help="of each task")
    parser.add_argument("--num-dev-examples", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=4, help="of fine-tuning")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of fine-tuning")
    parser.add_argument("--num-seeds", type=int, default=3)
    args = parser.parse_args(argv)
    write_tasks(args)
    for model in args.models:
        pretrain(args, model)
    print("| task | model | | dev of each seed | mean | std |")
    print("|---|---|---|---|---|---|")
    scores: dict[tuple[str, str, str], list[float]] = {}
    for seed in range(args.num_seeds):
        for task, model, twin in itertools.product(TASKS, args.models, TWINS):
            score = fine_tune(args, task, model, TWINS[twin], seed)
            scores.setdefault((task, model, twin), []).append(score)
    for row, of_seeds in scores.items():
        print_row(*row, of_seeds)
    return 0


def print_row(task: str, model: str, twin: str, scores: Sequence[float]) -> None:
    """Prints the scores of one model on one task."""
    each = ", ".join(f"{score:.1f}" for score in scores)
    deviation = f"{statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    mean = statistics.mean(scores)
    print(f"| {task} | {model} | {twin} | {each} | {mean:.1f} | {deviation} |", flush=True)


def word_order(words: list[str], index: int, rng: random.Random) -> tuple[str, str]:
    """Returns the sentence, of odd indices with seven words shuffled, and the label."""
    if index % 2 == 0:
        return " ".join(words), "as written"
    start = rng.randrange(len(words) - NUM_SHUFFLED)
    window = words[start : start + NUM_SHUFFLED]
    while (shuffled := rng.sample(window, NUM_SHUFFLED)) == window:
        pass
    return " ".join(words[:start] + shuffled + words[start + NUM_SHUFFLED :]), "shuffled"


def missing_words(words: list[str], index: int, rng: random.Random) -> tuple[str, str]:
    """Returns the sentence with a gap, and the three words that were there."""
    start = rng.randrange(1, len(words) - 3)
    gap = words[start : start + 3]
    return " ".join([*words[:start], GAP, *words[start + 3 :]]), " ".join(gap)


TASKS: dict[str, Callable[[list[str], int, random.Random], tuple[str, str]]] = {
    "word order": word_order,
    "missing words": missing_words,
}


def write_tasks(args: argparse.Namespace) -> None:
    """Writes train.csv and dev.csv of both tasks; the last novels give the dev examples."""
    from bert_jax.text.files import expand_globs

    novels = [Path(path) for path in expand_globs([args.heldout])]
    num_dev = max(1, len(novels) // 4)
    for split, files, number in (
        ("train", novels[:-num_dev], args.num_examples),
        ("dev", novels[-num_dev:], args.num_dev_examples),
    ):
        found = [sentence for file in files for sentence in sentences(file)]
        if len(found) < number:
            raise SystemExit(
                f"--heldout {args.heldout}: its novels for {split} have {len(found)} sentences of "
                f"9 to 14 words, expected at least {number} (--num-examples, --num-dev-examples)"
            )
        chosen = random.Random(0).sample(found, number)
        for task, make in TASKS.items():
            rng = random.Random(0)
            file = args.output / "tasks" / task.replace(" ", "-") / f"{split}.csv"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream)
                writer.writerow(["source", "target"])
                writer.writerows(make(words, i, rng) for i, words in enumerate(chosen))


def sentences(novel: Path) -> Iterator[list[str]]:
    """Yields the words of each sentence of 9 to 14 words."""
    from bert_jax.text.sentences import split_sentences

    text = gzip.decompress(novel.read_bytes()).decode("utf-8-sig")
    for sentence in split_sentences(" ".join(text.split())):
        words = sentence.split()
        if len(words) in WORDS_PER_SENTENCE:
            yield words


def pretrain(args: argparse.Namespace, model: str) -> None:
    """Trains a tokenizer, prepares the novels and pretrains the model, if that was not done."""
    from bert_jax.config.config_lib import override
    from bert_jax.config.recipes import call_recipe, load_recipe
    from bert_jax.config.text import TokenizerTrainingConfig
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.prepare import prepare
    from bert_jax.data.corpus.sources import TextFiles
    from bert_jax.text.files import expand_globs
    from bert_jax.text.learn import train_tokenizer_from_files

    folder = args.output / model
    tokenizer, corpus = folder / "tokenizer", folder / "prepared"
    if not tokenizer.exists():
        kind: Any = TOKENIZERS[model]
        config = TokenizerTrainingConfig(
            kind=kind,
            vocab_size=args.vocab_size,
            cased=True,
            sentinels=100 if model == "t5" else 0,
        )
        novels = expand_globs([args.train])[:TOKENIZER_NOVELS]
        train_tokenizer_from_files(novels, tokenizer, config)
    source = TextFiles(args.train)
    prepare(
        PrepareConfig(source=source, tokenizer=str(tokenizer), output=str(corpus)), num_workers=1
    )
    steps = PRETRAINING_STEPS[model]
    arguments = [f"corpus={corpus}", f"steps={steps}", "seq_length=64", "batch_size=32"]
    arguments += ["bfloat16=false", f"warmup_steps={steps // 10}"]
    arguments += ["size=small"] if model == "t5" else ["learning_rate=1e-3"]
    experiment = call_recipe(load_recipe(model), arguments, model)
    network = dataclasses.replace(experiment.objective.model, **small_sizes(model))
    objective = dataclasses.replace(experiment.objective, model=network)
    experiment = dataclasses.replace(experiment, objective=objective)
    complete(override(experiment, [f"train.checkpoints.save_every={steps // 4}"]), folder)


def small_sizes(model: str) -> dict[str, Any]:
    """Returns the fields of the config that differ from those of the recipe's smallest size."""
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256}
    sizes |= {"num_encoder_layers": 2, "num_decoder_layers": 2}
    return sizes if model == "t5" else {**sizes, "max_position_embeddings": 64}


def fine_tune(
    args: argparse.Namespace, task: str, model: str, is_pretrained: bool, seed: int
) -> float:
    """Fine-tunes once and returns the score on dev in percent."""
    from bert_jax.config.recipes import call_recipe, load_recipe

    files = args.output / "tasks" / task.replace(" ", "-")
    start = "pretrained" if is_pretrained else "untrained"
    folder = args.output / f"{files.name}-{model}-{start}-{seed}"
    steps = args.epochs * args.num_examples // 32
    experiment = call_recipe(
        load_recipe("text_to_text"),
        [
            *(f"model={args.output / model / 'run'}", f"train={files / 'train.csv'}"),
            *(f"dev={files / 'dev.csv'}", "source=source", "target=target", f"steps={steps}"),
            *("batch_size=32", f"seq_length={MAX_LENGTH}", f"target_length={MAX_TARGET_LENGTH}"),
            *("adafactor=false", f"learning_rate={args.learning_rate}", f"seed={seed}"),
        ],
        "text_to_text",
    )
    # The last checkpoint is scored: no checkpoint is chosen by its score on dev.
    checkpoints = dataclasses.replace(
        experiment.train.checkpoints, save_every=steps, best_metric=None, best_mode=None
    )
    train = dataclasses.replace(experiment.train, evaluation=None, checkpoints=checkpoints)
    initial = experiment.init_from if is_pretrained else None
    complete(dataclasses.replace(experiment, train=train, init_from=initial), folder)
    metrics = json.loads((folder / "run" / "evaluation.json").read_text())["dev"]
    return metrics["exact_match" if task == "word order" else "token_f1"]


def complete(experiment: Any, folder: Path) -> None:
    """Runs an experiment in `folder`/run, unless the file `folder`/done is there."""
    from bert_jax.train.run import run

    if (folder / "done").exists():
        return
    if run(experiment, folder / "run"):
        raise SystemExit(f"{folder}: the run was stopped; the same command continues it")
    (folder / "done").touch()


if __name__ == "__main__":
    raise SystemExit(main())
