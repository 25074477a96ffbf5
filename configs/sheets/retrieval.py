"""Compares heads for retrieval on one encoder: dense, sparse, multi-vector and a cross-encoder.

    bert-jax sheet retrieval --output runs/retrieval \\
        --arg model=exported pairs=triples.jsonl texts=anchor,positive,negative \\
              relevance=relevance.jsonl collection=squad:dev-v1.1.json

All heads start from the same encoder with a masked-LM head and are trained on the same questions
and texts. BM25 needs no training. The cross-encoder orders the first texts that BM25 finds. Heads
that shall train for the same time need numbers of epochs that take it.
"""

from bert_jax.apps.studies.sheets.sheet import Column, Evaluation, Make, Result, Sheet, System

_FOUND = Column(name="nDCG at 10", percent=True)
_RECALL = Column(name="recall at 100", percent=True)
_FUSED = Column(name="nDCG at 10, fused with BM25", percent=True)

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
    collection: str,
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
      collection: DATA of `bert-jax search evaluate`.
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
    evaluate, output = ("search", "evaluate", collection), ("--output", "{folder}/" + _FILE)
    rerank = ("--rerank", "{model}", "--candidates", str(num_reranked))
    sample = ("--max-queries", str(max_reranked_queries))
    systems = [
        System(name="BM25", model=None, evaluations=_columns((*evaluate, *output), "bm25")),
        *(
            System(
                name=name,
                model=name,
                evaluations=_columns((*evaluate, "{model}", *output), row, "hybrid"),
            )
            for name, (_, _, row) in _HEADS.items()
        ),
        System(
            name="BM25, reranked",
            model="cross-encoder",
            evaluations=_columns((*evaluate, *rerank, *sample, *output), "reranked"),
        ),
        System(
            name="BM25, the same questions",
            model=None,
            evaluations=_columns((*evaluate, *sample, *output), "bm25"),
        ),
    ]
    return Sheet(
        title="Retrieval",
        question="Which head finds the relevant texts, if all are trained on the same encoder and "
        "texts?",
        columns=(_FOUND, _RECALL, _FUSED),
        models=models,
        systems=tuple(systems),
        reference="BM25",
        seeds=seeds,
    )


def _columns(command: tuple[str, ...], row: str, fused: str | None = None) -> dict[str, Evaluation]:
    """Returns the evaluations of a system: its row and the fused one in the results."""
    keys = {
        _FOUND.name: (row, "ndcg@10"),
        _RECALL.name: (row, "recall@100"),
        _FUSED.name: (fused, "ndcg@10"),
    }
    return {
        column: Evaluation(
            command=command, value=Result(file=_FILE, keys=("results", name, metric))
        )
        for column, (name, metric) in keys.items()
        if name is not None
    }
