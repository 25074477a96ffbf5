"""Runs `bert-jax embed-evaluate`: prints how good the vectors of a model are on labeled tasks."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.cli.arguments import ModelArguments, VectorArguments
from bert_jax.config.flags import check_needs, flag
from bert_jax.config.labeled_data import GLUE_NAMES, Columns, Glue, GlueName
from bert_jax.errors import ConfigError

HELP = "evaluate embeddings on similarity, pairs and classification"

EPILOG = """examples:
  bert-jax embed-evaluate all-MiniLM-L6-v2 --glue GLUE --task stsb mrpc sst2
  bert-jax embed-evaluate runs/vectors --file pairs.csv --text a --text-pair b --label score
  bert-jax embed-evaluate exported --train train.csv --file test.csv --text review --label topic

The form of a task decides what is computed:
  pairs with scores        Spearman's and Pearson's correlation of similarity and score, over all
                           pairs
  pairs with two labels    average precision, and accuracy and F1 with the best threshold; the pairs
                           that belong together are those of the second label of a GLUE task, or of
                           a file in alphabetical order
  texts with labels        accuracy and macro F1 of logistic regression on the vectors of --train

`bert-jax search evaluate` evaluates retrieval.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(VectorArguments, ModelArguments):
    """Names the model, the data, and how vectors are made."""

    glue: str | None = flag("FOLDER", "folder with STS-B/dev.tsv and so on")
    task: tuple[GlueName, ...] = flag(
        "NAME",
        f"GLUE tasks to evaluate, on their dev sets: {', '.join(GLUE_NAMES)} (default: stsb)",
        (),
    )
    file: str | None = flag("FILE", "CSV, TSV, JSON lines or Parquet file, in place of --glue")
    train: str | None = flag("FILE", "labeled texts on which logistic regression is trained")
    text: str | None = flag("COLUMN", "column of the text")
    text_pair: str | None = flag("COLUMN", "column of the second text of a pair")
    label: str | None = flag("COLUMN", "column of the label or score")
    output: str | None = flag("FILE", "JSON file for the results")

    def __post_init__(self) -> None:
        if (self.glue is None) == (self.file is None):
            raise ConfigError(
                "expected either --glue FOLDER, or --file FILE with --text and --label"
            )
        check_needs(self, "glue", "task")
        check_needs(self, "file", "train", "text", "text_pair", "label")
        if self.file is not None and (self.text is None or self.label is None):
            raise ConfigError(
                "--file needs --text and --label, the columns of the text and its label"
            )

    def task_configs(self) -> list[Glue | Columns]:
        """Returns the tasks of --glue, or the one of --file."""
        if self.glue is not None:
            return [Glue(task=name, folder=self.glue) for name in self.task or ("stsb",)]
        assert self.text is not None and self.label is not None
        return [
            Columns(
                train=self.train,
                dev=self.file,
                text=self.text,
                text_pair=self.text_pair,
                label=self.label,
            )
        ]


def run(args: Arguments) -> None:
    """Prints a line for each task, and writes --output."""
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.io.atomic_io import check_writable, write_json
    from bert_jax.predict.embedder import Embedder
    from bert_jax.predict.evaluate_embeddings import evaluate_embeddings
    from bert_jax.pretrained.load import load_encoder

    check_writable(args.output)
    tasks = [load_task(config) for config in args.task_configs()]
    embed = Embedder(
        load_encoder(args.model),
        pooling=args.pooling,
        normalize=args.normalize,
        dimensions=args.dimensions,
    )
    results = {}
    for task in tasks:
        scores = evaluate_embeddings(embed, task)
        results[task.name] = scores._asdict()
        values = "  ".join(f"{name} {value:.4f}" for name, value in scores.metrics.items())
        evaluation = scores.evaluation.replace("_", " ")
        print(f"{task.name}: {evaluation}, {scores.num_examples:,} examples: {values}", flush=True)
    if args.output is not None:
        write_json(Path(args.output), {"model": args.model, "results": results})
