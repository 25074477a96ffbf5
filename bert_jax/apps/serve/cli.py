"""Runs `bert-jax serve`: answers HTTP requests with one or more models."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from bert_jax.apps.serve.config import WarmUp
from bert_jax.config.flags import flag, given, positional
from bert_jax.errors import ConfigError, MissingExtraError

HELP = "serve models over HTTP: embeddings, labels, tags, answers, masks"

KEY_VARIABLE = "BERT_JAX_API_KEY"

EPILOG = f"""\
examples:
  bert-jax serve exported
  bert-jax serve embeddings=exported reviews=runs/reviews --port 8080
  bert-jax serve base --adapter mrpc=runs/mrpc --adapter rte=runs/rte
  curl localhost:8080/embed -H 'Content-Type: application/json' -d '{{"inputs": "A text."}}'

The routes are as in text-embeddings-inference (/embed, /predict, /rerank, ...) and OpenAI
(/v1/embeddings), and for sparse and multi-vector models /embed_sparse and /v1/multi-vector; /docs
lists them. Requests choose a model by "model": "NAME", and an adapter by
"model": "NAME:ADAPTER". GET /health answers 200 when requests are answered, and says how many
programs are compiled.

A bundle of bert-jax export --bundle is served with its own programs. Exported files have one
output: there are no pictures of attention, and a masked-LM model fills masks only.

If the environment variable {KEY_VARIABLE} is set, requests need the header
Authorization: Bearer KEY. SIGTERM answers the accepted requests and exits.
"""


_limit = partial(flag, group="limits")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the models and the address, and limits the requests."""

    models: tuple[str, ...] = positional(
        "MODEL",
        "run folder, Hugging Face folder or bundle, or NAME=FOLDER (default name: that of the "
        "folder)",
    )
    onnx: Literal["fp32", "int8"] | None = flag(
        "",
        "run onnx/model.onnx of each folder (fp32), or model_quantized.onnx (int8), with "
        "onnxruntime; bert-jax export --onnx makes them",
    )
    adapter: tuple[str, ...] = flag(
        "NAME=FOLDER",
        "adapter of the model, chosen by requests as MODEL:NAME: a fine-tuning run, such as "
        "--method lora, or an adapter folder of peft; with several models MODEL:NAME=FOLDER",
        (),
        action="append",
    )
    host: str = flag("", "address", "127.0.0.1")
    port: int = flag("", "port, 0 for any", 8080)
    api_key_file: str | None = flag(
        "FILE", f"file with the key that requests need (default: the variable {KEY_VARIABLE})"
    )
    warm_up: WarmUp = flag(
        "",
        "programs to compile before requests are answered: one for a text of up to 128 tokens, "
        "and the others in the background (common), all, or none",
        "common",
    )
    max_length: int | None = _limit("TOKENS", "tokens of a text")
    max_batch_tokens: int | None = _limit("N", "tokens of a batch")
    max_queue_tokens: int | None = _limit("N", "tokens that may wait")
    max_inputs: int | None = _limit("N", "texts of a request")


def run(args: Arguments) -> None:
    """Loads the models and serves until a signal."""
    try:
        from bert_jax.apps.serve.run import CACHE_FOLDER, bind, load_models, run_server
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"bert-jax serve needs {error.name}", "serve") from None
    from bert_jax.apps.serve.config import ServerConfig
    from bert_jax.train.compilation_cache import persistent_compilation_cache

    names = ("max_length", "max_batch_tokens", "max_queue_tokens", "max_inputs")
    limits = given(args, *names)
    key = _read_key(args.api_key_file)
    config = ServerConfig(api_key=key, warm_up=args.warm_up, **limits)
    bound = bind(args.host, args.port)
    with bound, persistent_compilation_cache(CACHE_FOLDER.expanduser()):
        run_server(load_models(args.models, args.adapter, config, args.onnx), config, bound)


def _read_key(file: str | None) -> str | None:
    if file is None:
        key = os.environ.get(KEY_VARIABLE)
        return None if key is None else key.strip()
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {file}: {error}") from None
