"""Runs `bert-jax score`: prints the log-probabilities of texts and of their tokens."""

import json
import logging
from dataclasses import dataclass
from typing import Literal

from bert_jax.cli.arguments import ModelArguments, TextArguments, text_groups
from bert_jax.config.flags import flag

logger = logging.getLogger(__name__)

HELP = "compute how probable a model finds texts, token by token"

EPILOG = """examples:
  bert-jax score exported "The dogs bark." "The dogs barks."
  bert-jax score exported --masking within_word_l2r --file sentences.txt > scores.jsonl

A masked language model has a pseudo-log-likelihood: the sum of log P(token | all other tokens), in
nats. A run of the objective CausalLM has log P(token | the tokens before it), T5 and BART the same
after an empty source; ELECTRA and DeBERTa-v3 have log P(the token is original), by their
discriminators. Special tokens are not counted.

Each line of output: {"text", "log_probability", "tokens": [{"token", "log_probability"}]}. At the
end, stderr has the (pseudo-)perplexity of all texts: exp(-sum of log-probabilities / tokens).
"""


@dataclass(frozen=True, kw_only=True)
class MaskingArguments:
    """Says what a masked language model does not read."""

    masking: Literal["original", "within_word_l2r"] = flag(
        "",
        "what a masked language model does not read: the predicted token (original), or also the "
        "later tokens of its word (within_word_l2r) (default: original)",
        "original",
    )


@dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments, ModelArguments, MaskingArguments):
    """Names the model and the texts."""


def run(args: Arguments) -> None:
    """Prints one JSON line for each text, in order."""
    import math

    from bert_jax.apps.sentence_scores.scorer import SentenceScorer
    from bert_jax.pretrained.load import load_model

    score = SentenceScorer(load_model(args.model), masking=args.masking)
    total, num_tokens = 0.0, 0
    for texts in text_groups(args):
        for found in score(texts):
            total += found.log_probability
            num_tokens += len(found.tokens)
            tokens = [
                {"token": token, "log_probability": float(value)}
                for token, value in zip(found.tokens, found.log_probabilities, strict=True)
            ]
            line = {"text": found.text, "log_probability": found.log_probability, "tokens": tokens}
            print(json.dumps(line, ensure_ascii=False), flush=True)
    if num_tokens:
        logger.info("%s tokens, perplexity %.2f", f"{num_tokens:,}", math.exp(-total / num_tokens))
