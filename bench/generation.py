"""Times text generation beside Hugging Face's PyTorch `generate`, on the same random weights.

    python bench/generation.py --model t5-small --repeats 3

Both generate the same number of tokens for the same sources, in float32: the end token is forbidden
until the last one. Runs are interleaved, after one run of each that compiles or warms up; a row
has the medians. Needs torch and transformers.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import transformers

from bert_jax.config.generation import BeamSearch, GenerationConfig, Greedy
from bert_jax.interop.seq2seq import write_seq2seq_folder
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.models.t5.config import T5Config
from bert_jax.params import paths
from bert_jax.predict.generator import generate_ids, token_rules

MODELS: dict[str, EncoderDecoderConfig] = {
    "t5-small": T5Config.from_size("small"),
    "t5-v1.1-small": T5Config.v1_1("small"),
    "bart-base": BartConfig.from_size("base"),
}


def main() -> None:
    """Prints a row for each number of sources and each way of decoding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="t5-small")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--source-length", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    config = MODELS[args.model]
    params = build_encoder_decoder_network(config).init(jax.random.key(0))
    with tempfile.TemporaryDirectory() as folder:
        flat = paths.flatten(jax.device_get(params))
        write_seq2seq_folder(Path(folder), flat, config)
        torch_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    print("| model | sources | beams | bert_jax, tokens/s | transformers, tokens/s | ratio |")
    print("|---|---|---|---|---|---|")
    for batch_size in args.batch_sizes:
        rng = np.random.default_rng(0)
        ids = rng.integers(5, config.vocab_size, (batch_size, args.source_length))
        for num_beams in args.beams:
            rates = measure(
                [
                    lambda n=num_beams, ids=ids: run_bert_jax(
                        params, config, ids, n, args.new_tokens
                    ),
                    lambda n=num_beams, ids=ids: run_transformers(
                        torch_model, ids, n, args.new_tokens
                    ),
                ],
                batch_size * args.new_tokens,
                args.repeats,
            )
            cells = f"{rates[0]:,.0f} | {rates[1]:,.0f} | {rates[0] / rates[1]:.2f}"
            print(f"| {args.model} | {batch_size} | {num_beams} | {cells} |", flush=True)


def run_bert_jax(
    params: Any, config: EncoderDecoderConfig, ids: np.ndarray, num_beams: int, new_tokens: int
) -> np.ndarray:
    """Generates with bert_jax."""
    decoding = Greedy() if num_beams == 1 else BeamSearch(num_beams=num_beams)
    return np.asarray(
        generate_ids(
            params,
            ids.astype(np.int32),
            np.ones(ids.shape, np.int32),
            np.arange(len(ids), dtype=np.int32),
            config=config,
            settings=GenerationConfig(
                decoding=decoding, max_new_tokens=new_tokens, min_new_tokens=new_tokens
            ),
            rules=token_rules(config),
        )
    )


def run_transformers(model: Any, ids: np.ndarray, num_beams: int, new_tokens: int) -> np.ndarray:
    """Generates with transformers."""
    with torch.no_grad():
        return model.generate(
            torch.from_numpy(ids),
            attention_mask=torch.ones(ids.shape, dtype=torch.long),
            num_beams=num_beams,
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
        ).numpy()


def measure(
    functions: list[Callable[[], object]], num_tokens: int, repeats: int
) -> tuple[float, ...]:
    """Returns the median tokens per second of each function, which run in turns."""
    for function in functions:
        function()
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for times, function in zip(seconds, functions, strict=True):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
    return tuple(num_tokens / statistics.median(times) for times in seconds)


if __name__ == "__main__":
    main()
