"""Trains with the library that is the peer of a verb; a process of `epochs.py` and others.

    python bench/library_training.py VERB --train FILE --model MODEL --output FOLDER

VERB is finetune (transformers' Trainer), embed-train (sentence-transformers' trainer, multiple
negatives ranking) or setfit (the setfit library, in whose environment it then runs, so that nothing
of bert_jax is imported). Writes "first update" to stderr after the first update.
"""

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from typing import Any

FIRST_UPDATE = "first update"


def main(argv: Sequence[str] | None = None) -> int:
    """Trains one epoch and saves the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=TRAINERS)
    parser.add_argument("--train", required=True, help="CSV file; see `epochs.py` for its columns")
    parser.add_argument("--model", required=True, help="folder of sentence-transformers")
    parser.add_argument("--output", required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    args = parser.parse_args(argv)
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with open(args.train, newline="") as file:
        rows = list(csv.DictReader(file))
    TRAINERS[args.verb](args, {name: [row[name] for row in rows] for name in rows[0]})
    return 0


def report_first_update() -> Any:
    """Returns a callback of a Trainer that reports the end of its first step."""
    from transformers import TrainerCallback

    class ReportFirstUpdate(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                print(FIRST_UPDATE, file=sys.stderr, flush=True)

    return ReportFirstUpdate()


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments that trainers of transformers and sentence-transformers have."""
    return {
        "output_dir": args.output,
        "num_train_epochs": 1,
        "per_device_train_batch_size": args.batch_size,
        "learning_rate": 2e-5,
        "weight_decay": 0.01,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
    }


def fine_tune(args: argparse.Namespace, columns: dict[str, list[str]]) -> None:
    """Trains a classifier with transformers' Trainer, which pads a batch to its longest text."""
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    names = sorted(set(columns["label"]))
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=len(names))
    texts = [columns[name] for name in ("text", "text_pair") if name in columns]
    encoded = dict(tokenizer(*texts, truncation=True, max_length=args.max_length))
    labels = [names.index(label) for label in columns["label"]]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**settings(args)),
        train_dataset=Dataset.from_dict({**encoded, "labels": labels}),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=[report_first_update()],
    )
    trainer.train()
    trainer.save_model(args.output)


def train_embeddings(args: argparse.Namespace, columns: dict[str, list[str]]) -> None:
    """Trains a sentence encoder with the trainer of sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(args.model, device="cpu")
    model.max_seq_length = args.max_length
    SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**settings(args)),
        train_dataset=Dataset.from_dict(columns),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[report_first_update()],
    ).train()
    model.save(args.output)


def train_setfit(args: argparse.Namespace, columns: dict[str, list[str]]) -> None:
    """Trains sentence encoder and logistic regression of the setfit library."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    model = SetFitModel.from_pretrained(args.model, labels=sorted(set(columns["label"])))
    model.model_body.max_seq_length = args.max_length
    Trainer(
        model=model,
        args=TrainingArguments(
            batch_size=args.batch_size, report_to="none", save_strategy="no", output_dir=args.output
        ),
        train_dataset=Dataset.from_dict(columns),
        callbacks=[report_first_update()],
    ).train()
    model.save_pretrained(args.output)


TRAINERS = {"finetune": fine_tune, "embed-train": train_embeddings, "setfit": train_setfit}

if __name__ == "__main__":
    raise SystemExit(main())
