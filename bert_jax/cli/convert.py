"""Runs `bert-jax convert`: converts a TF1 or Hugging Face checkpoint to model.safetensors."""

import argparse
import logging
from pathlib import Path

logger = logging.getLogger(__name__)

HELP = "convert a Google TF1 or Hugging Face checkpoint to model.safetensors"

_EPILOG = """examples:
  bert-jax convert uncased_L-12_H-768_A-12 --output bert-base
  bert-jax fill-mask bert-base "Paris is the [MASK] of France."
  bert-jax convert roberta-base --longformer 4096 --output longformer-base

SOURCE is a folder of Google's release of BERT (bert_config.json and *.ckpt.index) or ELECTRA
(*.index), or of Hugging Face (config.json and model.safetensors or pytorch_model.bin, also in
shards). The output is a Hugging Face folder.
`bert-jax pretrain --init-from FOLDER` continues pretraining from it, or directly from SOURCE.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds SOURCE, --output, --generator and the flags of a Longformer."""
    parser.add_argument("source", metavar="SOURCE", help="folder with a checkpoint")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="new folder to write")
    parser.add_argument(
        "--generator",
        action="store_true",
        help="convert the generator of Google's ELECTRA checkpoint, not the discriminator",
    )
    parser.add_argument(
        "--longformer",
        type=int,
        metavar="TOKENS",
        help="maximum length of a Longformer to make from SOURCE, which has learned positions",
    )
    parser.add_argument(
        "--window",
        type=int,
        default=512,
        metavar="TOKENS",
        help="attention window of the Longformer, an even number (default: 512)",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Converts the checkpoint and prints which parts the source does not have."""
    from bert_jax.export.export import export
    from bert_jax.io.atomic_io import check_new_folder
    from bert_jax.pretrained.initial import load_generator, load_model_or_tf1
    from bert_jax.pretrained.seq2seq import is_seq2seq

    # Before the checkpoint is loaded, which takes seconds.
    check_new_folder(Path(args.output))
    if is_seq2seq(args.source):
        from bert_jax.export.seq2seq import export_seq2seq
        from bert_jax.pretrained.seq2seq import load_seq2seq

        export_seq2seq(load_seq2seq(args.source), Path(args.output))
        logger.info("converted %s to %s", args.source, args.output)
        return 0
    model = load_generator(args.source) if args.generator else load_model_or_tf1(args.source)
    if args.longformer is not None:
        from bert_jax.pretrained.longformer import make_longformer

        model = make_longformer(model, max_length=args.longformer, attention_window=args.window)
    export(model, Path(args.output))
    if model.missing:
        logger.warning("%s has no %s", args.source, ", no ".join(model.missing))
    if model.tokenizer is None:
        logger.warning("%s has no vocabulary files", args.source)
    logger.info("converted %s to %s", args.source, args.output)
    return 0
