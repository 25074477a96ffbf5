"""Searches with fast-plaid for `multi_vector_search.py`, in an environment of its own.

    python -m venv ENV && ENV/bin/pip install fast-plaid

FOLDER has documents.npz and queries.npz: `vectors` float32 [tokens, E] of all texts, and their
`lengths`. The first line of the output has the size of the index. Then each line "START STOP" of
the input is answered with a line of the best texts of the queries from START to STOP, and their
scores. It needs no package of this project.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from fast_plaid import search


def main() -> None:
    """Builds the index, and answers until the input ends."""
    folder, top_k = Path(sys.argv[1]), int(sys.argv[2])
    documents, queries = (read(folder / f"{name}.npz") for name in ("documents", "queries"))
    index = search.FastPlaid(index=str(folder / "plaid"), device="cpu")
    index.create(documents_embeddings=documents)
    files = (folder / "plaid").rglob("*")
    print(
        json.dumps({"num_bytes": sum(f.stat().st_size for f in files if f.is_file())}), flush=True
    )
    for line in sys.stdin:
        start, stop = map(int, line.split())
        found = [
            index.search(queries_embeddings=query[None], top_k=top_k, show_progress=False)[0]
            for query in queries[start:stop]
        ]
        rows = [[row for row, _ in ranked] for ranked in found]
        scores = [[score for _, score in ranked] for ranked in found]
        print(json.dumps({"rows": rows, "scores": scores}), flush=True)


def read(file: Path) -> list[torch.Tensor]:
    """Returns the vectors of each text."""
    arrays = np.load(file)
    return list(torch.from_numpy(arrays["vectors"]).split(arrays["lengths"].tolist()))


if __name__ == "__main__":
    main()
