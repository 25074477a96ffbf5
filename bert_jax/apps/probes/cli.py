"""Runs `bert-jax probe`: what the layers of an encoder show about words, trees and sentences."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert_jax.cli.arguments import MODEL_WITHOUT_HEAD, ModelArguments
from bert_jax.config.flags import REQUIRED, flag
from bert_jax.errors import check_range

logger = logging.getLogger(__name__)

HELP = "probe the layers of an encoder for parts of speech, trees and properties of sentences"

EPILOG = f"""examples:
  bert-jax probe exported --train en_ewt-ud-train.conllu --dev en_ewt-ud-dev.conllu \\
      --test en_ewt-ud-test.conllu --output runs/probes
  bert-jax probe exported --tasks upos structure --train ... --dev ... --test ...
  bert-jax probe exported --train eng.train --dev eng.testa --test eng.testb --tasks entity

{MODEL_WITHOUT_HEAD}
Files that end in .conllu (or .conllu.gz) are treebanks of Universal Dependencies, with the tasks
  upos xpos deprel                 of a word
  arc arc-label                    of a word and its head: is it the head, which relation
  length depth tense subject-number swapped-words   of a sentence
  structure                        structural probes for distances and depths of the tree
Other files are those of CoNLL-2003, with the tasks chunk and entity.

Each task is probed in all layers, and by a mix of layers, with the same network with random
parameters, layer 0, the most frequent label and, with --vectors, word vectors beside it. The table
has the layer that is best on dev: its accuracy on test with the deviation over seeds, selectivity
(accuracy minus that of a control task), and compression of the labels by an online code. --output
gets probes.json with all layers, and probes.html with curves.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(ModelArguments):
    """Names the model, the files, and what is probed."""

    train: str = flag("FILE", "treebank or CoNLL-2003 file with which probes are trained", REQUIRED)
    dev: str = flag("FILE", "file that decides when training stops, and the best layer", REQUIRED)
    test: str = flag("FILE", "file on which probes are evaluated", REQUIRED)
    tasks: tuple[str, ...] = flag("TASK", "names of tasks (default: all of the files)", ())
    sentences: int = flag("N", "sentences of each file, evenly spaced", 1000)
    seeds: int = flag("N", "probes with different initial values and batches", 3)
    hidden_size: int = flag("N", "size of a hidden layer of the probes, or 0 for linear ones", 0)
    rank: int = flag("N", "rank of structural probes", 64)
    pooling: Literal["first", "mean"] = flag(
        "", "vector of a word: of its first token, or the mean of its tokens", "mean"
    )
    vectors: str | None = flag(
        "FILE", "word vectors as a further baseline: a word and its numbers on each line"
    )
    cache: str | None = flag(
        "FOLDER", "hidden states, which later commands use again (default: in memory only)"
    )
    output: str | None = flag("FOLDER", "folder for probes.json and probes.html")

    def __post_init__(self) -> None:
        check_range("--sentences", self.sentences, at_least=1)
        check_range("--seeds", self.seeds, at_least=1)
        check_range("--hidden-size", self.hidden_size, at_least=0)
        check_range("--rank", self.rank, at_least=1)


def run(args: Arguments) -> None:
    """Trains the probes, prints tables and writes the output."""
    from bert_jax.apps.probes.page import format_results, results_page, to_json
    from bert_jax.apps.probes.probe import probe
    from bert_jax.apps.probes.structural import StructuralProbeConfig
    from bert_jax.apps.probes.training import ProbeConfig
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.report.output_folder import write_results

    output = None if args.output is None else Path(args.output)
    if output is not None:
        check_writable(output, is_folder=True)
    files = {"train": args.train, "dev": args.dev, "test": args.test}
    results = probe(
        load_encoder(args.model),
        files,
        tasks=args.tasks,
        num_sentences=args.sentences,
        num_seeds=args.seeds,
        pooling=args.pooling,
        vectors=args.vectors,
        cache=None if args.cache is None else Path(args.cache),
        config=ProbeConfig(hidden_size=args.hidden_size),
        structural_config=StructuralProbeConfig(rank=args.rank),
    )
    print(format_results(results), flush=True)
    if results.num_too_long:
        logger.info(
            "note: %s sentences are longer than the model reads and were left out",
            f"{results.num_too_long:,}",
        )
    if output is not None:
        settings = {
            "model": args.model,
            **files,
            "sentences": f"at most {args.sentences:,} of each file",
            "seeds": str(args.seeds),
            "probes": f"hidden layer of {args.hidden_size}" if args.hidden_size else "linear",
            "pooling": args.pooling,
        }
        values = {"settings": settings, **to_json(results)}
        write_results(output, "probes", values, results_page(results, settings))
        logger.info("wrote %s and probes.json", output / "probes.html")
