"""Runs `bert-jax cka`: how similar the layers of models are, on your texts."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.cli.arguments import MODEL_WITHOUT_HEAD, EncodingArguments, text_groups
from bert_jax.config.flags import REQUIRED, flag, positional

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

HELP = "compare the layers of one or several models by linear CKA, on a text file"

EPILOG = f"""examples:
  bert-jax cka exported --file texts.txt
  bert-jax cka exported runs/rte --file texts.txt --output cka
  bert-jax cka runs/seed0 runs/seed1 runs/seed2 --file texts.txt
  bert-jax cka runs/tiny/checkpoints/1000 runs/tiny --file texts.txt

{MODEL_WITHOUT_HEAD}
The layers of the first model are compared with those of each other model, or among themselves if
there is no other one. Linear CKA (Kornblith et al. 2019) is 1 if two layers have the same geometry,
up to rotation and scale, and 0 if they have nothing in common.

An example is a token of a text (special tokens are left out), or with --unit text, the mean over
the tokens of a text, which also compares models with different tokenizers. Use several times as
many examples as a layer has components: few examples make any two layers similar. Layer 0 is the
embeddings. The memory does not grow with the texts.

Prints a table for each pair of models. --output FOLDER gets cka.json and cka.html, a page that
opens offline.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(EncodingArguments):
    """Names the models and the texts."""

    models: tuple[str, ...] = positional("MODEL", "models to compare, or one model")
    file: tuple[str, ...] = flag(
        "FILE",
        "file or glob pattern: .txt with a text on each line, or .jsonl with a field 'text'; "
        "repeatable",
        REQUIRED,
        action="append",
    )
    unit: Literal["token", "text"] = flag("", "what an example is (default: token)", "token")
    output: str | None = flag("FOLDER", "folder of the JSON file and the page")

    @property
    def texts(self) -> tuple[str, ...]:
        """Returns no texts: all are in files."""
        return ()


def run(args: Arguments) -> None:
    """Prints the CKA of all layers."""
    from tqdm import tqdm

    from bert_jax.apps.similarity.cka import linear_cka
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.report.output_folder import write_results

    check_writable(args.output, is_folder=True)
    model, *others = [load_encoder(path) for path in args.models]
    others = others or [model]
    with tqdm(desc="comparing", unit=" texts", disable=None) as bar:
        found, num_examples = linear_cka(
            model, others, text_groups(args), unit=args.unit, on_progress=bar.update
        )
    pairs = list(zip([other.path for other in others], found, strict=True))
    for path, values in pairs:
        print(f"layers of {model.path} (rows), layers of {path} (columns)")
        print("     " + "".join(f"{layer:>6}" for layer in range(values.shape[1])))
        for layer, row in enumerate(values):
            print(f"{layer:>5}" + "".join(f"{value:>6.3f}" for value in row))
        print(flush=True)
    logger.info("%s examples (%ss)", f"{num_examples:,}", args.unit)
    if args.output is not None:
        results: dict[str, Any] = {
            "model": model.path,
            "unit": args.unit,
            "examples": num_examples,
            "cka": [{"model": path, "values": values.tolist()} for path, values in pairs],
        }
        page = cka_page(model.path, pairs, f"{num_examples:,} examples, each a {args.unit}")
        write_results(Path(args.output), "cka", results, page)


def cka_page(model: str, pairs: "list[tuple[str, np.ndarray]]", description: str) -> str:
    """Returns a page with a heat map for each model that was compared."""
    from bert_jax.report.heat_map import heat_map
    from bert_jax.report.html import card, escape, html_page

    cards = "".join(
        card(
            heat_map(
                values,
                [str(layer) for layer in range(len(values))],
                [str(layer) for layer in range(values.shape[1])],
                corner="layer",
                caption=f"Rows are layers of {model}, columns are layers of {path}.",
            ),
            title=f"{model} and {path}" if path != model else model,
        )
        for path, values in pairs
    )
    title = "Similarity of layers (linear CKA)"
    return html_page(
        title,
        f"<h1>{title}</h1><p>{escape(description)}. 1 is the same geometry, up to rotation and "
        f"scale; layer 0 is the embeddings.</p>{cards}",
    )
