"""Measures the compressed index of vectors of tokens beside exact MaxSim, BM25 and a dense index.

    python bench/multi_vector_search.py --squad dev-v1.1.json.gz --model colbert
    python bench/multi_vector_search.py --squad dev-v1.1.json.gz --vocabulary bert-base-uncased

The texts are paragraphs of SQuAD, the queries questions about them. MODEL is a multi-vector model;
the vectors of tokens of any other encoder are normalized, which is no trained model of this kind.
Without MODEL, the encoder is a new one with 2 layers of width 128, and a vocabulary of BERT: its
vectors tell tokens and positions apart, so that recall and time mean something, and MRR little.

fast-plaid, the index of PyLate, is measured with --plaid-python, of an environment that has the
version of PyTorch that its wheel needs; `fast_plaid_search.py` runs there.

Printed are, for each system: the fraction of the first 10 texts of exact MaxSim that it finds,
MRR@10 of the paragraph of the question, bytes of vectors for each text, and queries per second, the
median over rounds in which the systems take turns. Queries are embedded before; those of BM25 are
words. The dense index has the means of the same vectors of tokens.
"""

import argparse
import dataclasses
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from bert_jax.apps.search.build import build_index
from bert_jax.apps.search.documents import Document, RetrievalSet, read_retrieval_set
from bert_jax.apps.search.encoder import MultiVectorTextEncoder
from bert_jax.apps.search.nearest import Bm25, Neighbors, exact_neighbors
from bert_jax.apps.search.stored_vectors import StoredVectors
from bert_jax.apps.testing.models import small_config
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import build_network
from bert_jax.models.sentence_encoder.config import MultiVectorEncoderConfig, Normalize
from bert_jax.params import paths
from bert_jax.pretrained.embedding_model import embedding_kind
from bert_jax.pretrained.load import LoadedModel, build_model, load_encoder
from bert_jax.tasks.metrics.vectors import normalize_vectors
from bert_jax.text.load_tokenizer import load_tokenizer

TOP_K = 10
EXACT, DENSE, BM25, PLAID = "exact MaxSim", "dense", "bm25s", "fast-plaid"

Search = Callable[[int, int], Neighbors]
"""Finds the best `TOP_K` texts of the queries from a number to another."""


def main(argv: Sequence[str] | None = None) -> int:
    """Builds all indexes and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--squad", required=True, help="SQuAD's JSON file")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="folder of a multi-vector model or any encoder")
    model.add_argument("--vocabulary", help="folder with vocab.txt, for random weights")
    parser.add_argument("--num-documents", type=int, default=500)
    parser.add_argument("--num-queries", type=int, default=100)
    parser.add_argument("--bits", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--pool-factor", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plaid-python", help="python of an environment with fast-plaid")
    args = parser.parse_args(argv)
    data = sample(read_retrieval_set(f"squad:{args.squad}"), args.num_documents, args.num_queries)
    loaded = load_encoder(args.model) if args.model else random_model(Path(args.vocabulary))
    if embedding_kind(loaded) != "multi_vector":
        config = MultiVectorEncoderConfig(modules=(Normalize(),))
        loaded = dataclasses.replace(loaded, sentence_encoder=config, sentence_head={}, head=None)
    encoder = MultiVectorTextEncoder(loaded)
    queries = list(data.queries.values())
    vectors = encoder.encode_queries(queries)
    print(f"{jax.devices()[0].device_kind}, {loaded.path}", flush=True)
    searches, sizes = dict[str, Search](), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        for bits in (None, *args.bits):
            name = EXACT if bits is None else f"{bits} bits"
            index = build_index(
                Path(folder) / name,
                data.documents,
                encoder,
                bits=bits,
                pool_factor=args.pool_factor if bits else None,
            )
            searches[name] = search_tokens(index.vectors, vectors)
            sizes[name] = index.vectors.num_bytes / len(index)
        # The uncompressed index is small enough to hold its vectors in memory.
        documents_vectors = encoder.encode_documents(texts_of(data))
        if args.plaid_python:
            peer = Plaid(args.plaid_python, documents_vectors, vectors, Path(folder))
            searches[PLAID], sizes[PLAID] = peer.search, peer.num_bytes / len(data.documents)
        means = [each.mean(axis=0) for each in documents_vectors]
        documents = normalize_vectors(np.stack(means))
        dense_queries = normalize_vectors(np.stack([each.mean(axis=0) for each in vectors]))
        searches[DENSE] = lambda a, b: exact_neighbors(dense_queries[a:b], documents, TOP_K)
        sizes[DENSE] = documents.nbytes / len(documents)
        ranker = Bm25(texts_of(data))
        searches[BM25] = lambda a, b: ranker.search(queries[a:b], TOP_K)
        print_table(data, searches, sizes, args.rounds)
    return 0


def texts_of(data: RetrievalSet) -> list[str]:
    """Returns the texts of all documents."""
    return [document.text for document in data.documents]


def sample(data: RetrievalSet, num_documents: int, num_queries: int) -> RetrievalSet:
    """Returns the first documents, and some questions about them."""
    documents: tuple[Document, ...] = data.documents[:num_documents]
    ids = {document.id for document in documents}
    names = [name for name in data.queries if data.relevance[name].keys() <= ids]
    names = random.Random(0).sample(names, min(num_queries, len(names)))
    return RetrievalSet(
        name=data.name,
        documents=documents,
        queries={name: data.queries[name] for name in names},
        relevance={name: data.relevance[name] for name in names},
    )


def random_model(vocabulary: Path) -> LoadedModel:
    """Returns a newly initialized encoder."""
    tokenizer = load_tokenizer(vocabulary)
    config = small_config(
        vocab_size=tokenizer.vocab_size,
        hidden_size=128,
        intermediate_size=512,
        positions=LearnedPositions(max_position_embeddings=512),
    )
    params = build_network(config, config.pretraining_heads).init(jax.random.key(0))
    flat = {path: np.asarray(leaf) for path, leaf in paths.flatten(params).items()}
    return build_model(ImportedModel(flat, config, tokenizer, None), str(vocabulary))


def search_tokens(stored: StoredVectors, vectors: list[np.ndarray]) -> Search:
    """Returns the default search of an index of vectors of tokens."""
    search = getattr(stored, "approximate", stored.exact)
    return lambda start, stop: search(vectors[start:stop], TOP_K)


class Plaid:
    """Searches with fast-plaid in a process of another environment (4 bits, its defaults)."""

    def __init__(
        self,
        python: str,
        documents: Sequence[np.ndarray],
        queries: Sequence[np.ndarray],
        folder: Path,
    ):
        """Starts the process, which builds the index.

        Args:
          documents, queries: the vectors of the tokens of each text, float32 [tokens, E].
        """
        for name, texts in (("documents", documents), ("queries", queries)):
            lengths = np.array([len(text) for text in texts])
            np.savez(folder / f"{name}.npz", vectors=np.concatenate(texts), lengths=lengths)
        script = str(Path(__file__).with_name("fast_plaid_search.py"))
        self._process = subprocess.Popen(
            [python, script, str(folder), str(TOP_K)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.num_bytes = json.loads(self._read())["num_bytes"]

    def search(self, start: int, stop: int) -> Neighbors:
        """Returns the best texts of the queries from `start` to `stop`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{start} {stop}\n")
        self._process.stdin.flush()
        answer = json.loads(self._read())
        return Neighbors(np.array(answer["rows"]), np.array(answer["scores"], np.float32))

    def _read(self) -> str:
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith("{"):
            if not line:
                raise RuntimeError("fast_plaid_search.py ended; its messages are above")
        return line


def print_table(
    data: RetrievalSet, searches: dict[str, Search], sizes: dict[str, float], rounds: int
) -> None:
    """Searches with all systems in turns, one query at a time, and prints a line for each."""
    count = len(data.queries)
    rates: dict[str, list[float]] = {name: [] for name in searches}
    found = {name: search(0, count) for name, search in searches.items()}  # also compiles
    for _ in range(rounds):
        for name, search in searches.items():
            start = time.perf_counter()
            for query in range(count):
                search(query, query + 1)
            rates[name].append(count / (time.perf_counter() - start))
    rows = {document.id: row for row, document in enumerate(data.documents)}
    relevant = [rows[next(iter(data.relevance[name]))] for name in data.queries]
    print(f"{len(data.documents):,} texts, {count:,} queries")
    print(f"{'':14}{'recall@10':>11}{'MRR@10':>9}{'bytes/text':>12}{'queries/s':>11}")
    for name, neighbors in found.items():
        pairs = zip(neighbors.rows, found[EXACT].rows, strict=True)
        recall = statistics.fmean(
            len({*rows_found} & {*expected}) / TOP_K for rows_found, expected in pairs
        )
        ranks = [np.flatnonzero(r == row) for r, row in zip(neighbors.rows, relevant, strict=True)]
        mrr = statistics.fmean(1 / (1 + int(rank[0])) if len(rank) else 0.0 for rank in ranks)
        size = f"{sizes[name]:,.0f}" if name in sizes else ""
        rate = statistics.median(rates[name])
        print(f"{name:14}{recall:11.3f}{mrr:9.3f}{size:>12}{rate:11.1f}")


if __name__ == "__main__":
    raise SystemExit(main())
