"""Runs `bert-jax embed-train`: trains a pretrained encoder to embed texts."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments.recipe import add_checkpoints_argument, add_set_argument
from bert_jax.config.config_lib import override
from bert_jax.config.labeled_data import Glue, Snli
from bert_jax.config.sentence_embeddings import (
    NliFiles,
    NliForm,
    StsBenchmark,
    TextFile,
    TextGroupsConfig,
)
from bert_jax.errors import ConfigError
from bert_jax.models.sentence_encoder.config import POOLING_MODES

if TYPE_CHECKING:
    from bert_jax.config.sentence_embeddings import SentenceLoss

HELP = "train an encoder to embed texts, on pairs, triples, scored pairs, NLI or single texts"

_EPILOG = """examples:
  bert-jax embed-train nli --snli-dir snli --model exported --dev stsb --glue-dir glue_data \\
      --run runs/nli
  bert-jax embed-train columns --train questions.csv --texts question,answer --model exported \\
      --run runs/questions
  bert-jax embed-train columns --train pairs.jsonl --texts first,second --score similarity \\
      --score-range 0 5 --loss cosent --model runs/nli --run runs/pairs
  bert-jax embed-train columns --train sentences.csv --texts text --loss simcse --model exported \\
      --run runs/simcse

DATA is
  nli      premises with entailed and contradicting hypotheses of SNLI (--snli-dir) and MNLI
           (--glue-dir), as triples; as classes for --loss softmax
  stsb     pairs with scores from 0 to 5 of the STS benchmark (--glue-dir)
  columns  your CSV, TSV, JSON lines or Parquet file (--train, --texts, --score or --label)

The default of --loss is multiple-negatives-ranking; it is cosent for data with scores, softmax for
data with labels, and simcse for single texts.

With --dev, the rank correlation of cosines with scores is computed during the run, and the best
checkpoint is kept. `bert-jax embed runs/nli` computes vectors, and `bert-jax export` writes the
folder. The same command resumes a run that was stopped. Exit codes: 0 done, 1 failure, 2 usage, 75
stopped by SIGTERM or Ctrl-C after saving a checkpoint.
"""

LOSSES = (
    "multiple-negatives-ranking",
    "cosent",
    "cosine-similarity",
    "softmax",
    "triplet",
    "contrastive",
    "simcse",
    "supervised-simcse",
    "mse",
    "margin-mse",
)
_SETTINGS = (
    *("epochs", "batch_size", "chunk_size", "learning_rate", "max_length", "eval_every"),
    *("seed", "pooling"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds DATA with its flags, --model, --run, --loss, hyperparameters and --set."""
    parser.add_argument(
        "data", metavar="DATA", choices=("nli", "stsb", "columns"), help="nli, stsb or columns"
    )
    parser.add_argument(
        "--model",
        required=True,
        help="pretrained model: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument(
        "--run", metavar="FOLDER", required=True, help="run folder; resumed if it exists"
    )
    add_checkpoints_argument(parser)
    _add_data_arguments(parser)
    _add_loss_arguments(parser)
    numbers = (
        ("--epochs", float, "N", "training epochs (default: 1)"),
        ("--batch-size", int, "N", "examples of a batch (default: 64)"),
        ("--chunk-size", int, "N", "examples encoded at once, to save memory (default: all)"),
        ("--learning-rate", float, "RATE", "peak learning rate (default: 2e-5)"),
        ("--max-length", int, "TOKENS", "length of a text (default: that of the model, or 128)"),
        ("--eval-every", int, "N", "updates between evaluations (default: a tenth of the run)"),
        ("--seed", int, "N", "random seed (default: 0)"),
    )
    for flag, convert, metavar, text in numbers:
        parser.add_argument(flag, type=convert, metavar=metavar, help=text)
    add_set_argument(parser)
    parser.epilog = _EPILOG


def _add_data_arguments(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data")
    data.add_argument("--snli-dir", metavar="DIR", help="folder with snli_1.0_train.jsonl or TSV")
    data.add_argument("--glue-dir", metavar="DIR", help="folder with MNLI and STS-B")
    data.add_argument(
        "--splits",
        type=_names,
        metavar="NAME,NAME",
        help="splits of nli or stsb to train on (default: train)",
    )
    data.add_argument("--train", metavar="FILE", help="examples of columns, plain or .gz")
    data.add_argument(
        "--texts",
        type=_names,
        metavar="COLUMN,...",
        help="columns of the texts: one; or two for pairs; or anchor, positive, hard negatives",
    )
    data.add_argument("--score", metavar="COLUMN", help="column of the similarity of a pair")
    data.add_argument(
        "--score-range",
        type=float,
        nargs=2,
        metavar=("LOWEST", "HIGHEST"),
        help="scores of the least and the most similar pair, in --train and --dev (default: 0 1)",
    )
    data.add_argument("--label", metavar="COLUMN", help="column of the class of a pair")
    data.add_argument(
        "--dev",
        metavar="FILE",
        help="pairs with scores for evaluation; stsb is the dev set of STS-B in --glue-dir",
    )
    data.add_argument(
        "--dev-columns",
        type=_names,
        metavar="COLUMN,COLUMN,COLUMN",
        help="columns of --dev: text, text, score (default: sentence1,sentence2,score)",
    )


def _add_loss_arguments(parser: argparse.ArgumentParser) -> None:
    loss = parser.add_argument_group("loss")
    loss.add_argument("--loss", choices=LOSSES, help="loss (default: see below)")
    loss.add_argument(
        "--matryoshka-dims",
        type=_sizes,
        metavar="N,N,...",
        help="sizes to which vectors can be shortened after training; the loss is summed over them",
    )
    loss.add_argument(
        "--mlp-only-train",
        action="store_true",
        help="with --loss simcse, a tanh layer over the vectors that is left out after training, "
        "as in the paper with --pooling cls",
    )
    loss.add_argument(
        "--teacher",
        metavar="MODEL",
        help="model whose vectors are learned, for the losses mse and margin-mse",
    )
    loss.add_argument(
        "--pooling",
        choices=POOLING_MODES,
        help="how hidden states of a text become one vector (default: that of the model, or mean)",
    )


def run(args: argparse.Namespace) -> int:
    """Trains and returns the exit code of the run."""
    from bert_jax.parallel.processes import config_from_environment, initialize

    # First, because the number of updates depends on the number of processes.
    initialize(config_from_environment())
    from bert_jax.train.presets import sentence_embedding_experiment
    from bert_jax.train.run import run as train_run

    name = args.loss or _default_loss(args)
    train = _train_data(args, name)
    given = {key: value for key in _SETTINGS if (value := getattr(args, key)) is not None}
    experiment = sentence_embedding_experiment(
        train, args.model, _loss(args, name, train), dev=_dev_data(args), **given
    )
    experiment = override(experiment, args.overrides)
    return train_run(experiment, Path(args.run), args.checkpoints)


def _default_loss(args: argparse.Namespace) -> str:
    if args.data == "stsb" or args.score is not None:
        return "cosent"
    if args.label is not None:
        return "softmax"
    return "simcse" if len(args.texts or ()) == 1 else "multiple-negatives-ranking"


def _loss(args: argparse.Namespace, name: str, train: TextGroupsConfig) -> "SentenceLoss":
    from bert_jax.config import sentence_embeddings
    from bert_jax.train.presets import softmax_loss

    if args.mlp_only_train and name != "simcse":
        raise ConfigError("--mlp-only-train is a part of --loss simcse; remove one of them")
    has_teacher = name in ("mse", "margin-mse")
    if has_teacher != (args.teacher is not None):
        problem = "needs" if has_teacher else "does not use"
        raise ConfigError(f"--loss {name} {problem} --teacher, a model whose vectors are learned")
    losses: dict[str, Any] = {
        "multiple-negatives-ranking": sentence_embeddings.MultipleNegativesRankingLoss,
        "cosent": sentence_embeddings.CoSENTLoss,
        "cosine-similarity": sentence_embeddings.CosineSimilarityLoss,
        "softmax": lambda: softmax_loss(train),
        "triplet": sentence_embeddings.TripletLoss,
        "contrastive": sentence_embeddings.ContrastiveLoss,
        "simcse": lambda: sentence_embeddings.UnsupervisedSimCSE(
            mlp_only_train=args.mlp_only_train
        ),
        "supervised-simcse": sentence_embeddings.SupervisedSimCSE,
        "mse": lambda: sentence_embeddings.MSELoss(teacher=args.teacher),
        "margin-mse": lambda: sentence_embeddings.MarginMSELoss(teacher=args.teacher),
    }
    loss = losses[name]()
    if args.matryoshka_dims is None:
        return loss
    return sentence_embeddings.MatryoshkaLoss(loss=loss, dims=args.matryoshka_dims)


def _train_data(args: argparse.Namespace, loss: str) -> TextGroupsConfig:
    _check_flags(args)
    match args.data:
        case "nli":
            tasks: list[Snli | Glue] = []
            if args.snli_dir is not None:
                tasks.append(Snli(folder=args.snli_dir))
            # With --dev stsb, --glue-dir may have STS-B only.
            if args.glue_dir is not None and (
                not tasks or args.dev != "stsb" or (Path(args.glue_dir) / "MNLI").is_dir()
            ):
                tasks.append(Glue(task="mnli", folder=args.glue_dir))
            if not tasks:
                raise ConfigError("nli needs --snli-dir or --glue-dir, the folder of its files")
            form: NliForm = "classes" if loss == "softmax" else "triples"
            return NliFiles(tasks=tuple(tasks), splits=args.splits or ("train",), form=form)
        case "stsb":
            splits = args.splits or ("train",)
            if args.glue_dir is None or len(splits) > 1:
                raise ConfigError("stsb needs --glue-dir, the folder with STS-B, and one split")
            return StsBenchmark(folder=args.glue_dir, split=splits[0])
        case _:
            if args.train is None or args.texts is None:
                raise ConfigError(
                    "columns needs --train, a file, and --texts, the names of its columns of texts"
                )
            return TextFile(
                path=args.train,
                texts=args.texts,
                score=args.score,
                score_range=_score_range(args),
                label=args.label,
            )


def _check_flags(args: argparse.Namespace) -> None:
    """Raises a ConfigError for a flag that the data does not use."""
    files = ("train", "texts", "score", "label")
    unused = ("snli_dir", "splits") if args.data == "columns" else files
    for name in unused:
        if getattr(args, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{args.data} does not use {flag}; leave it out")


def _dev_data(args: argparse.Namespace) -> TextFile | StsBenchmark | None:
    if args.dev is None:
        if args.dev_columns is not None or args.eval_every is not None:
            raise ConfigError("--dev-columns and --eval-every need --dev, the pairs to evaluate on")
        return None
    if args.dev == "stsb":
        if args.glue_dir is None:
            raise ConfigError("--dev stsb needs --glue-dir, the folder with STS-B")
        return StsBenchmark(folder=args.glue_dir, split="dev")
    columns = args.dev_columns or ("sentence1", "sentence2", "score")
    if len(columns) != 3:
        raise ConfigError(
            f"--dev-columns has {len(columns)} columns; expected three: text, text, score"
        )
    return TextFile(
        path=args.dev, texts=columns[:2], score=columns[2], score_range=_score_range(args)
    )


def _score_range(args: argparse.Namespace) -> tuple[float, float]:
    lowest, highest = args.score_range or (0.0, 1.0)
    return lowest, highest


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected sizes such as 384,128,64") from None
