"""Runs `bert-jax fill-mask`: prints the most likely tokens at each mask, as JSON lines."""

import json
from dataclasses import dataclass

from bert_jax.cli.arguments import MODEL_WITHOUT_HEAD, ModelArguments, TextArguments, text_groups
from bert_jax.config.flags import flag

HELP = "predict the tokens at the [MASK]s (RoBERTa: <mask>) of texts"

EPILOG = f"""examples:
  bert-jax fill-mask exported "Paris is the [MASK] of France."
  bert-jax fill-mask runs/tiny --top-k 3 --file questions.txt > answers.jsonl

{MODEL_WITHOUT_HEAD}
Each line of output: {{"text", "masks": [{{"candidates": [{{"token", "id", "probability"}}]}}]}}.
An empty line of a file or of standard input has no masks.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments, ModelArguments):
    """Names the model, the texts, and how many tokens are printed."""

    top_k: int = flag("K", "candidates for each mask", 5)


def run(args: Arguments) -> None:
    """Prints one JSON line for each text, in order."""
    from bert_jax.predict.fill_mask import FillMask
    from bert_jax.pretrained.load import load_encoder

    fill = FillMask(load_encoder(args.model), top_k=args.top_k)
    for text_batch in text_groups(args):
        for prediction in fill(text_batch):
            print(json.dumps(prediction, ensure_ascii=False), flush=True)
