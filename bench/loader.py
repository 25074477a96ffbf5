"""Measures how many tokens per second one core turns into masked batches, versus what TPUs need.

    python bench/loader.py                      generated articles, and the novels of
                                                BERT_JAX_SHARED if that variable is set
    python bench/loader.py --corpus FOLDER      a prepared corpus of your own

The process is pinned to one core. Each number is the median of several interleaved runs of the
whole loader (reading, sentence pairs, batches, masking, prefetch thread). It counts real tokens
without padding per second of CPU time; "wall" is per second of wall-clock time, which other
processes slow down.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.apps.testing.random_corpus import random_documents, random_vocab_arrays, write_corpus
from bert_jax.config.data import (
    Masking,
    PackedSegments,
    PretrainingData,
    SentencePairs,
    SingleSegment,
)
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.data.pretraining.masking import mask_tokens
from bert_jax.data.pretraining.sentence_pairs import collate_pairs
from bert_jax.data.pretraining.vocab_arrays import VocabArrays

MAX_PREDICTIONS = {128: 20, 512: 76}
BATCH_SIZE = 64
EXAMPLES = {"pairs": SentencePairs(), "single": SingleSegment(), "packed": PackedSegments()}
TARGET_TOKENS_PER_SECOND = 1_000_000  # for pairs at length 512
CHIPS, MFU = 16, 0.6

Corpora = dict[str, tuple[PreparedCorpus, VocabArrays]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", metavar="FOLDER", help="corpus written by bert-jax prepare")
    parser.add_argument("--runs", type=int, default=5, help="runs per case (default: 5)")
    parser.add_argument("--batches", type=int, default=40, help="batches per run (default: 40)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        corpora = load_corpora(args.corpus, Path(scratch))
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        fastest = time_loader(corpora, args.runs, args.batches)
        for name, (corpus, table) in corpora.items():
            print_stage_times(name, corpus, table, args.runs)
    print_required_rates(fastest)


def load_corpora(corpus_folder: str | None, scratch: Path) -> Corpora:
    """Returns the given corpus, or else generated articles and, if available, novels."""
    if corpus_folder is not None:
        corpus = PreparedCorpus(corpus_folder)
        return {Path(corpus_folder).name: (corpus, VocabArrays.from_tokenizer(corpus.tokenizer()))}
    size = 30_522
    # Like an encyclopedia: log-normal lengths, 550 tokens on average, sentences of 1 to 45 tokens.
    documents = random_documents(20_000, vocab_size=size, mean_sentences=24, mean_tokens=23)
    articles = PreparedCorpus(
        write_corpus(scratch / "articles", documents, vocab_size=size, num_shards=4)
    )
    corpora = {"articles": (articles, random_vocab_arrays(size))}
    shared = os.environ.get("BERT_JAX_SHARED")
    if shared is not None:
        novels = prepare_novels(Path(shared) / "data", scratch / "novels")
        corpora["novels"] = (novels, VocabArrays.from_tokenizer(novels.tokenizer()))
    return corpora


def prepare_novels(data: Path, output: Path) -> PreparedCorpus:
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.prepare import prepare
    from bert_jax.data.corpus.sources import TextFiles

    config = PrepareConfig(
        source=TextFiles(str(data / "text/novels/*.txt.gz")),
        tokenizer=str(data / "vocab/bert-base-uncased/vocab.txt"),
        output=str(output),
    )
    prepare(config)
    return PreparedCorpus(output)


def time_loader(corpora: Corpora, runs: int, batches: int) -> float:
    """Prints a row for each case; returns the lowest median for pairs at length 512."""
    cases = [
        (name, length, kind, whole_word)
        for name in corpora
        for length in MAX_PREDICTIONS
        for kind in EXAMPLES
        for whole_word in (False, True)
    ]
    found: dict[tuple[str, int, str, bool], list[tuple[float, float, float]]] = {}
    for run in range(runs):
        for case in cases:
            name, length, kind, whole_word = case
            config = PretrainingData(
                corpus="", input_format=EXAMPLES[kind], masking=Masking(whole_word_mask=whole_word)
            )
            found.setdefault(case, []).append(
                _time_run(*corpora[name], config, length, run, batches)
            )
    print("\nreal tokens per second on one core, median of runs (lowest to highest)\n")
    print(
        f"{'corpus':<10}{'length':>7}  {'examples':<9}{'whole word':<11}"
        f"{'per CPU s':>11}{'range':>21}{'wall':>11}{'filled':>8}"
    )
    medians = {}
    for case, results in found.items():
        cpu, wall, fill_fraction = (
            statistics.median(column) for column in zip(*results, strict=True)
        )
        medians[case] = cpu
        low, high = min(r[0] for r in results), max(r[0] for r in results)
        name, length, kind, whole_word = case
        print(
            f"{name:<10}{length:>7}  {kind:<9}{'yes' if whole_word else 'no':<11}{cpu:>11,.0f}"
            f"{f'{low:,.0f}-{high:,.0f}':>21}{wall:>11,.0f}{fill_fraction:>8.1%}"
        )
    slowest = min(medians[name, 512, "pairs", whole] for name in corpora for whole in (False, True))
    result_text = "reached" if slowest >= TARGET_TOKENS_PER_SECOND else "MISSED"
    print(
        f"\ntarget of {TARGET_TOKENS_PER_SECOND:,} tokens per second for pairs at length 512: "
        f"{result_text} ({slowest:,.0f})"
    )
    return slowest


def _time_run(
    corpus: PreparedCorpus,
    table: VocabArrays,
    config: PretrainingData,
    length: int,
    seed: int,
    batches: int,
) -> tuple[float, float, float]:
    """Returns (tokens per CPU second, tokens per wall-clock second, fraction without padding)."""
    builder = BatchBuilder(
        corpus,
        table,
        config,
        seq_length=length,
        batch_size=BATCH_SIZE,
        max_predictions_per_seq=MAX_PREDICTIONS[length],
        seed=seed,
    )
    with PretrainingLoader(builder) as loader:
        for _ in range(config.prefetch_batches + 1):
            next(loader)
        # The prefetch queue is full now, as it is at the end.
        wall, cpu = time.perf_counter(), time.process_time()
        masks = [next(loader)["attention_mask"] for _ in range(batches)]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    tokens = int(sum(mask.sum() for mask in masks))
    return tokens / cpu, tokens / wall, tokens / (batches * BATCH_SIZE * length)


def print_stage_times(name: str, corpus: PreparedCorpus, table: VocabArrays, runs: int) -> None:
    """Prints the time of each stage for pairs at length 512."""
    length, predictions = 512, MAX_PREDICTIONS[512]
    builder = BatchBuilder(
        corpus,
        table,
        PretrainingData(corpus=""),
        seq_length=length,
        batch_size=BATCH_SIZE,
        max_predictions_per_seq=predictions,
        seed=0,
    )
    reads: list[int] = []
    read = corpus.read

    def recording_read(part_index: int):
        reads.append(part_index)
        return read(part_index)

    times: dict[str, list[float]] = {}

    def timed(stage: str, fn: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = fn()
        times.setdefault(stage, []).append(time.process_time() - start)
        return result

    for position in range(0, 10 * runs * BATCH_SIZE, BATCH_SIZE):
        found = timed("order and keys", lambda p=position: builder.resolve_examples(p, BATCH_SIZE))
        numbers = list(zip(*(column.tolist() for column in found), strict=True))
        corpus.read = recording_read  # type: ignore[method-assign]
        made: list[Any] = [builder.dataset.read(*number) for number in numbers]
        corpus.read = read  # type: ignore[method-assign]
        timed("reading", lambda: [read(part_index) for part_index in reads])
        reads.clear()
        timed(
            "reading and pairs", lambda n=numbers: [builder.dataset.read(*number) for number in n]
        )
        rows = timed("rows", lambda m=made: collate_pairs(m, length, table))
        for stage, whole_word in (("masks", False), ("masks, whole words", True)):
            timed(
                stage,
                lambda r=rows, k=found.keys, w=whole_word: mask_tokens(
                    r["input_ids"],
                    r["attention_mask"],
                    k,
                    Masking(whole_word_mask=w),
                    predictions,
                    table,
                ),
            )
    medians = {stage: statistics.median(values) for stage, values in times.items()}
    medians["pairs"] = medians.pop("reading and pairs") - medians["reading"]
    print(f"\nCPU microseconds per sequence of pairs, {name}, length {length}\n")
    for stage in ("order and keys", "reading", "pairs", "rows", "masks", "masks, whole words"):
        print(f"  {stage:<20}{medians[stage] / BATCH_SIZE * 1e6:>8.1f}")


def print_required_rates(tokens_per_core: float) -> None:
    """Prints the tokens per second that 16 chips need, and how many cores produce them."""
    from bert_jax.config.objectives import Pretraining
    from bert_jax.config.train import Phase
    from bert_jax.models.bert.config import BertConfig
    from bert_jax.parallel.tpu_slices import all_slices
    from bert_jax.train.flops import step_flops

    length = 512
    phase = Phase(
        steps=1, seq_length=length, batch_size=256, max_predictions_per_seq=MAX_PREDICTIONS[length]
    )
    objective = Pretraining(model=BertConfig.from_size("base"), mask_token_id=103)
    per_token = step_flops(objective, phase) / (phase.batch_size * length)
    print(
        f"\n{CHIPS} chips at {MFU:.0%} MFU, BERT-base at length {length}: {per_token:,.0f} FLOPs "
        "per token, three times\nthe forward products: 12 (8 D^2 + 4 D F + 4 L D) and the "
        "masked-LM head\n"
    )
    print(f"{'chip':<8}{'TFLOP/s':>8}{'tokens/s':>14}{'cores':>8}   (cores: at the rate above)")
    chip_flops = {
        each.generation.name: each.generation.bf16_flops for each in all_slices().values()
    }
    for chip, peak in chip_flops.items():
        required_rate = CHIPS * peak * MFU / per_token
        print(
            f"{chip:<8}{peak / 1e12:>8.0f}{required_rate:>14,.0f}"
            f"{required_rate / tokens_per_core:>8.1f}"
        )


if __name__ == "__main__":
    main()
