"""How many tokens a second one core makes into masked rows, and how many a TPU slice would eat.

    python bench/loader.py                        made-up articles, and the novels of
                                                  BERT_JAX_SHARED where that is set
    python bench/loader.py --prepared FOLDER      a prepared corpus of your own

The process is held to one core. Each figure is the median of several runs of the whole loader
(reading, pairs, rows, masks, prefetch thread), in interleaved order: real tokens, padding left
out, per second of CPU time; "wall" is the same by the clock, which other programs slow down.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bert_jax.data.batches import BatchMaker
from bert_jax.data.config import LoaderConfig, Masking, Packed, Pairs, Single
from bert_jax.data.loader import PretrainLoader
from bert_jax.data.masking import mask_rows
from bert_jax.data.pairs import pair_rows
from bert_jax.data.prepared import PreparedCorpus
from bert_jax.data.token_table import TokenTable
from bert_jax.testing.corpora import random_documents, token_table, write_corpus

PREDICTIONS = {128: 20, 512: 76}
BATCH_SIZE = 64
EXAMPLES = {"pairs": Pairs(), "single": Single(), "packed": Packed()}
GOAL = 1_000_000  # tokens a second, pairs at length 512
CHIPS, MFU = 16, 0.6

Corpora = dict[str, tuple[PreparedCorpus, TokenTable]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prepared", metavar="FOLDER", help="a corpus made by bert-jax prepare")
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: 5)")
    parser.add_argument("--batches", type=int, default=40, help="batches in a run (default: 40)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        corpora = gather(args.prepared, Path(scratch))
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        fastest = whole_loader(corpora, args.runs, args.batches)
        for name, (corpus, table) in corpora.items():
            stages(name, corpus, table, args.runs)
    appetite(fastest)


def gather(prepared: str | None, scratch: Path) -> Corpora:
    """The corpora to measure: the given one, or articles, and novels where they are at hand."""
    if prepared is not None:
        corpus = PreparedCorpus(prepared)
        return {Path(prepared).name: (corpus, TokenTable.from_vocabulary(corpus.vocabulary()))}
    size = 30_522
    # Like an encyclopedia: log-normal, 550 tokens in the mean, sentences of 1 to 45 tokens.
    documents = random_documents(20_000, size=size, mean_sentences=24, mean_tokens=23)
    articles = PreparedCorpus(write_corpus(scratch / "articles", documents, size=size, shards=4))
    corpora = {"articles": (articles, token_table(size))}
    shared = os.environ.get("BERT_JAX_SHARED")
    if shared is not None:
        novels = prepare_novels(Path(shared) / "data", scratch / "novels")
        corpora["novels"] = (novels, TokenTable.from_vocabulary(novels.vocabulary()))
    return corpora


def prepare_novels(data: Path, output: Path) -> PreparedCorpus:
    from bert_jax.data.prepare import prepare
    from bert_jax.data.sources import TextFiles
    from bert_jax.data.workplan import PrepareConfig

    config = PrepareConfig(
        source=TextFiles(str(data / "text/novels/*.txt.gz")),
        vocabulary=str(data / "vocab/bert-base-uncased/vocab.txt"),
        output=str(output),
    )
    prepare(config)
    return PreparedCorpus(output)


def whole_loader(corpora: Corpora, runs: int, batches: int) -> float:
    """Prints a row for each kind of example; returns the median for pairs at length 512."""
    cases = [
        (name, length, kind, whole_word)
        for name in corpora
        for length in PREDICTIONS
        for kind in EXAMPLES
        for whole_word in (False, True)
    ]
    found: dict[tuple[str, int, str, bool], list[tuple[float, float, float]]] = {}
    for run in range(runs):
        for case in cases:
            name, length, kind, whole_word = case
            config = LoaderConfig(
                prepared="", examples=EXAMPLES[kind], masking=Masking(whole_word=whole_word)
            )
            found.setdefault(case, []).append(
                _one_run(*corpora[name], config, length, run, batches)
            )
    print("\nreal tokens a second on one core, median of runs (lowest to highest)\n")
    print(
        f"{'corpus':<10}{'length':>7}  {'examples':<9}{'whole word':<11}"
        f"{'per CPU s':>11}{'range':>21}{'wall':>11}{'filled':>8}"
    )
    medians = {}
    for case, results in found.items():
        cpu, wall, filled = (statistics.median(column) for column in zip(*results, strict=True))
        medians[case] = cpu
        low, high = min(r[0] for r in results), max(r[0] for r in results)
        name, length, kind, whole_word = case
        print(
            f"{name:<10}{length:>7}  {kind:<9}{'yes' if whole_word else 'no':<11}{cpu:>11,.0f}"
            f"{f'{low:,.0f}-{high:,.0f}':>21}{wall:>11,.0f}{filled:>8.1%}"
        )
    slowest = min(medians[name, 512, "pairs", whole] for name in corpora for whole in (False, True))
    verdict = "reached" if slowest >= GOAL else "MISSED"
    print(f"\ngoal of {GOAL:,} tokens a second for pairs at length 512: {verdict} ({slowest:,.0f})")
    return slowest


def _one_run(
    corpus: PreparedCorpus,
    table: TokenTable,
    config: LoaderConfig,
    length: int,
    seed: int,
    batches: int,
) -> tuple[float, float, float]:
    """(Real tokens per CPU second, per second by the clock, share of places that are filled)."""
    with PretrainLoader(
        corpus,
        config,
        length=length,
        batch_size=BATCH_SIZE,
        max_predictions=PREDICTIONS[length],
        seed=seed,
        table=table,
    ) as loader:
        for _ in range(config.prefetch_batches + 1):
            next(loader)
        # The batches made ahead now are as many as those made ahead at the end.
        wall, cpu = time.perf_counter(), time.process_time()
        masks = [next(loader)["attention_mask"] for _ in range(batches)]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    tokens = int(sum(mask.sum() for mask in masks))
    return tokens / cpu, tokens / wall, tokens / (batches * BATCH_SIZE * length)


def stages(name: str, corpus: PreparedCorpus, table: TokenTable, runs: int) -> None:
    """Prints where the time of pairs at length 512 goes."""
    length, predictions = 512, PREDICTIONS[512]
    maker = BatchMaker(
        corpus,
        table,
        LoaderConfig(prepared=""),
        length=length,
        batch_size=BATCH_SIZE,
        max_predictions=predictions,
        seed=0,
    )
    reads: list[int] = []
    read = corpus.read

    def noted(record: int):
        reads.append(record)
        return read(record)

    times: dict[str, list[float]] = {}

    def timed(stage: str, work: Callable):
        begin = time.process_time()
        result = work()
        times.setdefault(stage, []).append(time.process_time() - begin)
        return result

    for position in range(0, 10 * runs * BATCH_SIZE, BATCH_SIZE):
        found = timed("order and keys", lambda p=position: maker.examples(p, BATCH_SIZE))
        numbers = list(zip(*(column.tolist() for column in found), strict=True))
        corpus.read = noted  # type: ignore[method-assign]
        made = [maker.source.read(*number) for number in numbers]
        corpus.read = read  # type: ignore[method-assign]
        timed("reading", lambda: [read(record) for record in reads])
        reads.clear()
        timed("reading and pairs", lambda n=numbers: [maker.source.read(*number) for number in n])
        rows = timed("rows", lambda m=made: pair_rows(m, length, table))
        for stage, whole_word in (("masks", False), ("masks, whole words", True)):
            timed(
                stage,
                lambda r=rows, k=found.keys, w=whole_word: mask_rows(
                    r["input_ids"],
                    r["attention_mask"],
                    k,
                    Masking(whole_word=w),
                    predictions,
                    table,
                ),
            )
    medians = {stage: statistics.median(values) for stage, values in times.items()}
    medians["pairs"] = medians.pop("reading and pairs") - medians["reading"]
    print(f"\nmicroseconds of CPU for each row of pairs, {name}, length {length}\n")
    for stage in ("order and keys", "reading", "pairs", "rows", "masks", "masks, whole words"):
        print(f"  {stage:<20}{medians[stage] / BATCH_SIZE * 1e6:>8.1f}")


def appetite(tokens_per_core: float) -> None:
    """Prints what 16 chips of each generation would eat, beside what one core makes."""
    from bert_jax.models.config import bert
    from bert_jax.plan.slices import all_slices
    from bert_jax.programs.config import Pretraining
    from bert_jax.train.config import Phase
    from bert_jax.train.flops import step_flops

    length = 512
    phase = Phase(steps=1, length=length, batch_size=256, max_predictions=PREDICTIONS[length])
    program = Pretraining(model=bert("base"), mask_token_id=103)
    per_token = step_flops(program, phase) / (phase.batch_size * length)
    print(
        f"\n{CHIPS} chips at {MFU:.0%} MFU, BERT-base at length {length}: {per_token:,.0f} FLOPs a "
        "token, three times\nthe forward products: 12 (8 D^2 + 4 D F + 4 L D) and the masked "
        "positions' head\n"
    )
    print(f"{'chip':<8}{'TFLOP/s':>8}{'tokens/s':>14}{'cores':>8}   (cores: at the rate above)")
    peaks = {each.generation.name: each.generation.bf16_flops for each in all_slices().values()}
    for chip, peak in peaks.items():
        eaten = CHIPS * peak * MFU / per_token
        print(f"{chip:<8}{peak / 1e12:>8.0f}{eaten:>14,.0f}{eaten / tokens_per_core:>8.1f}")


if __name__ == "__main__":
    main()
