"""Runs `bert-jax embed-train`: trains a pretrained encoder to embed texts."""

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.cli.arguments import PRETRAINED, RunArguments
from bert_jax.config.config_lib import override
from bert_jax.config.flags import (
    REQUIRED,
    check_needs,
    first_given,
    flag,
    given,
    positional,
    switch,
)
from bert_jax.config.labeled_data import Glue, Snli
from bert_jax.config.sentence_embeddings import (
    NliFiles,
    NliForm,
    StsBenchmark,
    TextFile,
    TextGroupsConfig,
)
from bert_jax.errors import ConfigError
from bert_jax.models.sentence_encoder.config import PoolingMode

if TYPE_CHECKING:
    from bert_jax.config.embedding_losses import SentenceLoss

HELP = "train an encoder to embed texts, on pairs, triples, scored pairs, NLI or single texts"

EPILOG = """examples:
  bert-jax embed-train nli --snli-dir snli --model exported --dev stsb --glue-dir glue_data \\
      --run runs/nli
  bert-jax embed-train columns --train questions.csv --texts question,answer --model exported \\
      --run runs/questions
  bert-jax embed-train columns --train pairs.jsonl --texts first,second --score similarity \\
      --score-range 0 5 --loss cosent --model runs/nli --run runs/pairs
  bert-jax embed-train columns --train sentences.csv --texts text --loss simcse --model exported \\
      --run runs/simcse
  bert-jax embed-train columns --train sentences.csv --texts text --loss tsdae --pooling cls \\
      --model exported --run runs/tsdae
  bert-jax embed-train columns --train mined.jsonl --texts query,positive,negative_1 \\
      --loss splade --model exported --run runs/splade

DATA is
  nli      premises with entailed and contradicting hypotheses of SNLI (--snli-dir) and MNLI
           (--glue-dir), as triples; as classes for --loss softmax
  stsb     pairs with scores from 0 to 5 of the STS benchmark (--glue-dir)
  columns  your CSV, TSV, JSON lines or Parquet file (--train, --texts, --score or --label)

The default of --loss is multiple-negatives-ranking; it is cosent for data with scores, softmax for
data with labels, and simcse for single texts. tsdae reads single texts, too: it deletes 60 % of
their words, and predicts the text from the vector of the rest (--set
objective.loss.deletion_ratio=0.6).

The losses splade and maxsim train a sparse model (SPLADE) and a multi-vector model (ColBERT) from
queries, positives and any number of hard negatives, as `bert-jax search mine` finds them. The
sparsity of splade is set by --set objective.loss.document_regularizer_weight=3e-5
objective.loss.query_regularizer_weight=5e-5.

With --dev, the rank correlation of cosines with scores is computed during the run, and the best
checkpoint is kept. `bert-jax embed runs/nli` computes vectors, and `bert-jax export` writes the
folder. The same command resumes a run that was stopped. Exit codes: 0 done, 1 failure, 2 usage, 75
stopped by SIGTERM or Ctrl-C after saving a checkpoint.
"""

LossName = Literal[
    "multiple-negatives-ranking",
    "gist",
    "cosent",
    "angle",
    "cosine-similarity",
    "softmax",
    "triplet",
    "contrastive",
    "simcse",
    "supervised-simcse",
    "tsdae",
    "mse",
    "embed-distill",
    "margin-mse",
    "distill-kl",
    "splade",
    "splade-margin-mse",
    "splade-distill-kl",
    "maxsim",
    "maxsim-margin-mse",
    "maxsim-distill-kl",
]
_DISTILLATION = ("margin-mse", "distill-kl")
"""The endings of the losses of a teacher's scores."""
COMMON = (
    *("train", "texts", "score", "label", "dev", "model", "run", "loss"),
    *("epochs", "batch_size", "learning_rate", "max_length"),
)
_SETTINGS = (
    *("epochs", "batch_size", "chunk_size", "learning_rate", "max_length", "eval_every"),
    *("seed", "pooling"),
)
_FILE_FLAGS = ("train", "texts", "score", "label", "teacher_scores")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected sizes such as 384,128,64") from None


_data = partial(flag, group="data")
_loss_flag = partial(flag, group="loss")
_training = partial(flag, group="training")


@dataclass(frozen=True, kw_only=True)
class Arguments(RunArguments):
    """Names the data, the model, the loss, and how the model is trained."""

    data: Literal["nli", "stsb", "columns"] = positional("DATA", "nli, stsb or columns")
    model: str = flag("", PRETRAINED, REQUIRED)
    snli_dir: str | None = _data("DIR", "folder with snli_1.0_train.jsonl or TSV")
    glue_dir: str | None = _data("DIR", "folder with MNLI and STS-B")
    splits: tuple[str, ...] | None = _data(
        "NAME,NAME", "splits of nli or stsb to train on (default: train)", type=_names
    )
    train: str | None = _data("FILE", "examples of columns, plain or .gz")
    texts: tuple[str, ...] | None = _data(
        "COLUMN,...",
        "columns of the texts: one; or two for pairs; or anchor, positive, hard negatives",
        type=_names,
    )
    score: str | None = _data("COLUMN", "column of the similarity of a pair")
    score_range: tuple[float, float] = flag(
        ("LOWEST", "HIGHEST"),
        "scores of the least and the most similar pair, in --train and --dev (default: 0 1)",
        (0.0, 1.0),
        group="data",
        nargs=2,
    )
    label: str | None = _data("COLUMN", "column of the class of a pair")
    teacher_scores: tuple[str, ...] | None = _data(
        "COLUMN,...",
        "columns of the scores that a teacher gives to the first text with each other text, or one "
        "column with lists",
        type=_names,
    )
    dev: str | None = _data(
        "FILE", "pairs with scores for evaluation; stsb is the dev set of STS-B in --glue-dir"
    )
    dev_columns: tuple[str, ...] | None = _data(
        "COLUMN,COLUMN,COLUMN",
        "columns of --dev: text, text, score (default: sentence1,sentence2,score)",
        type=_names,
    )
    loss: LossName | None = _loss_flag("", "loss (default: see below)")
    matryoshka_dims: tuple[int, ...] | None = _loss_flag(
        "N,N,...",
        "sizes to which vectors can be shortened after training; the loss is summed over them",
        type=_sizes,
    )
    adaptive_layers: bool = switch(
        "also train the vectors of all earlier layers, so that layers can be left out later; "
        "with --matryoshka-dims it is 2D Matryoshka",
        group="loss",
    )
    mlp_only_train: bool = switch(
        "with --loss simcse, a tanh layer over the vectors that is left out after training, "
        "as in the paper with --pooling cls",
        group="loss",
    )
    teacher: str | None = _loss_flag(
        "MODEL",
        "model whose vectors are learned with mse and embed-distill, or guide the choice of "
        "negatives with gist; for the losses ...margin-mse and ...distill-kl a cross-encoder, or a "
        "model of vectors, whose scores are learned",
    )
    static_queries: bool = switch(
        "with --loss splade, queries have a learned weight for each of their tokens, and do not "
        "need the encoder",
        group="loss",
    )
    pooling: PoolingMode | None = _loss_flag(
        "", "how hidden states of a text become one vector (default: as in the model, or mean)"
    )
    epochs: float | None = flag("N", "training epochs (default: 1)")
    batch_size: int | None = flag("N", "examples of a batch (default: 64)")
    chunk_size: int | None = _training(
        "N",
        "examples encoded at once, to save memory; the loss covers the whole batch (default: all)",
    )
    learning_rate: float | None = flag("RATE", "peak learning rate (default: 2e-5)")
    max_length: int | None = flag(
        "TOKENS", "length of a text (default: as in the model, or 128, up to 256 for longer texts)"
    )
    eval_every: int | None = _training(
        "N", "updates between evaluations (default: a tenth of the run)"
    )
    seed: int | None = _training("N", "random seed (default: 0)")
    set: tuple[str, ...] = flag(
        "FIELD=VALUE", "fields of the config, as in train.schedule.peak_learning_rate=2e-4", ()
    )

    @property
    def loss_name(self) -> "LossName":
        """Returns the given loss, or the usual one for the data."""
        if self.loss is not None:
            return self.loss
        if self.data == "stsb" or self.score is not None:
            return "cosent"
        if self.label is not None:
            return "softmax"
        return "simcse" if len(self.texts or ()) == 1 else "multiple-negatives-ranking"

    def __post_init__(self) -> None:
        unused = () if self.data == "nli" else ("snli_dir",)
        unused += ("splits",) if self.data == "columns" else _FILE_FLAGS
        if self.data == "columns" and self.dev != "stsb":
            unused += ("glue_dir",)
        if self.score is None and self.dev in (None, "stsb"):
            unused += ("score_range",)
        if name := first_given(self, *unused):
            raise ConfigError(f"{self.data} does not use {name}; leave it out")
        if self.data == "columns" and (self.train is None or self.texts is None):
            raise ConfigError(
                "columns needs --train, a file, and --texts, the names of its columns of texts"
            )
        if self.data == "nli" and self.snli_dir is None and self.glue_dir is None:
            raise ConfigError("nli needs --snli-dir or --glue-dir, the folder of its files")
        if self.data == "stsb" and (self.glue_dir is None or len(self.splits or ()) > 1):
            raise ConfigError("stsb needs --glue-dir, the folder with STS-B, and one split")
        if self.mlp_only_train and self.loss_name != "simcse":
            raise ConfigError("--mlp-only-train is a part of --loss simcse; remove one of them")
        if self.static_queries and not self.loss_name.startswith("splade"):
            raise ConfigError("--static-queries is a part of --loss splade; remove one of them")
        name = first_given(self, "matryoshka_dims", "adaptive_layers")
        if name and self.loss_name.startswith(("splade", "maxsim")):
            raise ConfigError(
                f"{name} is for dense vectors, which --loss {self.loss_name} does not train; "
                "remove it"
            )
        if name and self.loss_name == "tsdae":
            raise ConfigError(
                f"{name} sums losses that compare vectors, and --loss tsdae predicts texts; remove "
                "it"
            )
        needs_teacher = self.loss_name in ("mse", "embed-distill", "gist")
        has_teacher = needs_teacher or self.loss_name.endswith(_DISTILLATION)
        if (self.teacher is None and needs_teacher) or (self.teacher and not has_teacher):
            problem = "needs" if needs_teacher else "does not use"
            raise ConfigError(f"--loss {self.loss_name} {problem} --teacher, a model to learn from")
        check_needs(self, "dev", "dev_columns", "eval_every")
        if self.dev == "stsb" and self.dev_columns is not None:
            raise ConfigError("--dev stsb has columns of its own; remove --dev-columns")
        if self.dev == "stsb" and self.glue_dir is None:
            raise ConfigError("--dev stsb needs --glue-dir, the folder with STS-B")
        if self.dev_columns is not None and len(self.dev_columns) != 3:
            raise ConfigError(
                f"--dev-columns has {len(self.dev_columns)} columns; expected three: text, text, "
                "score"
            )


def run(args: Arguments) -> int:
    """Trains and returns the exit code of the run."""
    from bert_jax.parallel.processes import config_from_environment, initialize

    # First, because making the experiment asks JAX for its processes.
    initialize(config_from_environment())
    from bert_jax.train.presets import sentence_embedding_experiment
    from bert_jax.train.run import run as train_run

    train = _train_data(args)
    experiment = sentence_embedding_experiment(
        train,
        args.model,
        _loss(args, train),
        dev=_dev_data(args),
        has_static_queries=args.static_queries,
        **given(args, *_SETTINGS),
    )
    experiment = args.tracked(override(experiment, args.set))
    return train_run(experiment, args.clear_run_folder(experiment), args.checkpoints)


def _loss(args: Arguments, train: TextGroupsConfig) -> "SentenceLoss":
    from bert_jax.config import embedding_losses
    from bert_jax.train.presets import softmax_loss

    margin_mse = embedding_losses.MarginMSELoss(teacher=args.teacher)
    distill_kl = embedding_losses.DistillKLDivLoss(teacher=args.teacher)
    splade, max_sim = embedding_losses.SpladeLoss, embedding_losses.MaxSimRankingLoss
    losses: dict[LossName, Any] = {
        "multiple-negatives-ranking": embedding_losses.MultipleNegativesRankingLoss,
        "gist": lambda: embedding_losses.GISTEmbedLoss(guide=str(args.teacher)),
        "cosent": embedding_losses.CoSENTLoss,
        "angle": embedding_losses.AnglELoss,
        "cosine-similarity": embedding_losses.CosineSimilarityLoss,
        "softmax": lambda: softmax_loss(train),
        "triplet": embedding_losses.TripletLoss,
        "contrastive": embedding_losses.ContrastiveLoss,
        "simcse": lambda: embedding_losses.UnsupervisedSimCSE(mlp_only_train=args.mlp_only_train),
        "supervised-simcse": embedding_losses.SupervisedSimCSE,
        "tsdae": embedding_losses.DenoisingAutoEncoderLoss,
        "mse": lambda: embedding_losses.MSELoss(teacher=str(args.teacher)),
        "embed-distill": lambda: embedding_losses.EmbedDistillLoss(teacher=str(args.teacher)),
        "margin-mse": lambda: margin_mse,
        "distill-kl": lambda: distill_kl,
        "splade": splade,
        "splade-margin-mse": lambda: splade(distillation=margin_mse),
        # The temperature of sentence-transformers, for sparse vectors with their larger products.
        "splade-distill-kl": lambda: splade(distillation=replace(distill_kl, temperature=2.0)),
        "maxsim": max_sim,
        "maxsim-margin-mse": lambda: max_sim(distillation=margin_mse),
        "maxsim-distill-kl": lambda: max_sim(distillation=distill_kl),
    }
    loss = losses[args.loss_name]()
    if args.matryoshka_dims is not None:
        loss = embedding_losses.MatryoshkaLoss(loss=loss, dims=args.matryoshka_dims)
    if args.adaptive_layers:
        loss = embedding_losses.AdaptiveLayerLoss(loss=loss)
    return loss


def _train_data(args: Arguments) -> TextGroupsConfig:
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
            form: NliForm = "classes" if args.loss_name == "softmax" else "triples"
            return NliFiles(tasks=tuple(tasks), splits=args.splits or ("train",), form=form)
        case "stsb":
            assert args.glue_dir is not None
            return StsBenchmark(folder=args.glue_dir, split=(args.splits or ("train",))[0])
        case "columns":
            assert args.train is not None and args.texts is not None
            return TextFile(
                path=args.train,
                texts=args.texts,
                score=args.score,
                score_range=args.score_range,
                label=args.label,
                teacher_scores=args.teacher_scores or (),
            )


def _dev_data(args: Arguments) -> TextFile | StsBenchmark | None:
    if args.dev is None:
        return None
    if args.dev == "stsb":
        assert args.glue_dir is not None
        return StsBenchmark(folder=args.glue_dir, split="dev")
    columns = args.dev_columns or ("sentence1", "sentence2", "score")
    return TextFile(
        path=args.dev, texts=columns[:2], score=columns[2], score_range=args.score_range
    )
