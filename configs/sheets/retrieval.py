"""Compares heads for retrieval on one encoder: dense, sparse, multi-vector and a cross-encoder.

    bert-jax sheet retrieval --output runs/retrieval \\
        --arg model=exported pairs=triples.jsonl texts=anchor,positive,negative \\
              relevance=relevance.jsonl collections='["squad:dev-v1.1.json","beir:scifact"]'

All heads start from the same encoder with a masked-LM head and are trained on the same questions
and texts. BM25 needs no training. The cross-encoder orders the first texts that BM25 finds. Heads
that shall train for the same time need numbers of epochs that take it.
"""

from pathlib import Path

from bert_jax.apps.studies.sheets.sheet import (
    Column,
    Command,
    Evaluation,
    Make,
    Result,
    Sheet,
    System,
)

_FILE = "retrieval.json"
_HEADS = {
    # loss of `bert-jax embed-train`, its learning rate, and the name of the row in the results
    "dense": ("multiple-negatives-ranking", 2e-5, "dense"),
    "SPLADE": ("splade", 5e-5, "sparse"),
    "multi-vector": ("maxsim", 2e-5, "multi_vector"),
}


def get_config(
    *,
    model: str,
    pairs: str,
    texts: str,
    relevance: str,
    collections: tuple[str, ...],
    dense_epochs: float = 1.0,
    sparse_epochs: float = 1.0,
    multi_vector_epochs: float = 1.0,
    reranker_epochs: float = 1.0,
    batch_size: int = 32,
    num_reranked: int = 20,
    max_reranked_queries: int = 400,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Sheet:
    """Returns the sheet.

    Args:
      model: an encoder with a masked-LM head.
      pairs: a file with questions and relevant texts.
      texts: its columns, separated by commas: question, relevant text, others.
      relevance: a file with the columns query, text and relevant, for the cross-encoder.
      collections: each is DATA of `bert-jax search evaluate`.
      dense_epochs, sparse_epochs, multi_vector_epochs, reranker_epochs: of each head.
      batch_size: of all heads.
      num_reranked: the texts of a question that the cross-encoder orders.
      max_reranked_queries: the questions of its row, a random sample.
    """
    epochs = dict(zip(_HEADS, (dense_epochs, sparse_epochs, multi_vector_epochs), strict=True))
    training = (
        *("--model", model, "--run", "{folder}", "--seed", "{seed}"),
        *("--batch-size", str(batch_size), "--max-length", "128", "--epochs"),
    )
    models = {
        name: Make(
            command=(
                *("embed-train", "columns", "--train", pairs, "--texts", texts, "--loss", loss),
                *(*training, str(epochs[name]), "--learning-rate", str(learning_rate)),
            )
        )
        for name, (loss, learning_rate, _) in _HEADS.items()
    }
    relevance_columns = ("--text", "query", "--text-pair", "text", "--label", "relevant")
    models["cross-encoder"] = Make(
        command=(
            *("finetune", "columns", "--train", relevance, *relevance_columns, "--kind", "ranking"),
            *(*training, str(reranker_epochs), "--learning-rate", "5e-5"),
        )
    )
    rerank = ("--rerank", "{model}", "--candidates", str(num_reranked))
    sample = ("--max-queries", str(max_reranked_queries))
    # name of a row, its model, the arguments of `bert-jax search evaluate`, and the names of the
    # rows in the results: its own, and its fusion with BM25
    rows: list[tuple[str, str | None, Command, str, str | None]] = [
        ("BM25", None, (), "bm25", None),
        *((name, name, ("{model}",), row, "hybrid") for name, (_, _, row) in _HEADS.items()),
        ("BM25, reranked", "cross-encoder", (*rerank, *sample), "reranked", None),
        ("BM25, the same questions", None, sample, "bm25", None),
    ]
    systems = {name: dict[str, Evaluation]() for name, *_ in rows}
    for collection in collections:
        for name, _, arguments, row, fused in rows:
            command = ("search", "evaluate", collection, *arguments)
            systems[name] |= _evaluations(collection, command, row, fused)
    return Sheet(
        title="Retrieval",
        question="Which head finds the relevant texts, if all are trained on the same encoder and "
        "texts?",
        columns=tuple(
            Column(name=column, percent=True)
            for collection in collections
            for column in _evaluations(collection, (), "", "")
        ),
        models=models,
        systems=tuple(
            System(name=name, model=model, evaluations=systems[name]) for name, model, *_ in rows
        ),
        reference="BM25",
        seeds=seeds,
    )


def _evaluations(
    collection: str, command: Command, row: str, fused: str | None
) -> dict[str, Evaluation]:
    """Returns column -> evaluation of one collection: the row and the fused one in the results."""
    name = Path(collection.partition(":")[2]).stem
    columns = {
        f"nDCG at 10 ({name})": (row, "ndcg@10"),
        f"recall at 100 ({name})": (row, "recall@100"),
        f"nDCG at 10, fused with BM25 ({name})": (fused, "ndcg@10"),
    }
    return {
        column: Evaluation(
            command=(*command, "--output", "{folder}/" + _FILE),
            value=Result(file=_FILE, keys=("results", result, metric)),
        )
        for column, (result, metric) in columns.items()
        if result is not None
    }
