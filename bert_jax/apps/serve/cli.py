"""Runs `bert-jax serve`: answers HTTP requests with one or more models."""

import argparse
import os
from pathlib import Path

from bert_jax.errors import ConfigError, MissingExtraError

HELP = "serve models over HTTP: embeddings, labels, tags, answers, masks"

KEY_VARIABLE = "BERT_JAX_API_KEY"

_EPILOG = f"""\
examples:
  bert-jax serve exported
  bert-jax serve embeddings=exported reviews=runs/reviews --port 8080
  bert-jax serve base --adapter mrpc=runs/mrpc --adapter rte=runs/rte
  curl localhost:8080/embed -H 'Content-Type: application/json' -d '{{"inputs": "A text."}}'

The routes are those of text-embeddings-inference (/embed, /predict, /rerank, ...) and of OpenAI
(/v1/embeddings); /docs lists them. Requests choose a model by "model": "NAME", and an adapter by
"model": "NAME:ADAPTER". GET /health answers 200 when all programs are compiled.

A bundle of bert-jax export --bundle is served with its own programs. Exported files have one
output: there are no pictures of attention, and a masked-LM model fills masks only.

If the environment variable {KEY_VARIABLE} is set, requests need the header
Authorization: Bearer KEY. SIGTERM answers the accepted requests and exits.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, --onnx, --adapter, --host, --port, --api-key-file and the limits."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="run folder, Hugging Face folder or bundle, or NAME=FOLDER (default name: that of the "
        "folder)",
    )
    parser.add_argument(
        "--onnx",
        choices=("fp32", "int8"),
        help="run onnx/model.onnx of each folder (fp32), or model_quantized.onnx (int8), with "
        "onnxruntime; bert-jax export --onnx makes them",
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="adapter of the model, chosen by requests as MODEL:NAME: a fine-tuning run, such as "
        "--method lora, or an adapter folder of peft; with several models MODEL:NAME=FOLDER",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="port, 0 for any (default: 8080)")
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"file with the key that requests need (default: the variable {KEY_VARIABLE})",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-length", type=int, metavar="TOKENS", help="tokens of a text")
    limits.add_argument("--max-batch-tokens", type=int, metavar="N", help="tokens of a batch")
    limits.add_argument("--max-queue-tokens", type=int, metavar="N", help="tokens that may wait")
    limits.add_argument("--max-inputs", type=int, metavar="N", help="texts of a request")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Loads the models and serves until a signal."""
    try:
        from bert_jax.apps.serve.run import CACHE_FOLDER, bind, load_models, run_server
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"bert-jax serve needs {error.name}", "serve") from None
    from bert_jax.apps.serve.config import ServerConfig
    from bert_jax.train.compilation_cache import persistent_compilation_cache

    names = ("max_length", "max_batch_tokens", "max_queue_tokens", "max_inputs")
    limits = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    config = ServerConfig(api_key=_read_key(args.api_key_file), **limits)
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
