"""Runs `bert-jax convert`: converts a TF1 or Hugging Face checkpoint to model.safetensors."""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, check_needs, first_given, flag, positional, switch
from bert_jax.errors import ConfigError

logger = logging.getLogger(__name__)

HELP = "convert a Google TF1 or other checkpoint to a Hugging Face folder with safetensors"

EPILOG = """examples:
  bert-jax convert uncased_L-12_H-768_A-12 --output bert-base
  bert-jax fill-mask bert-base "Paris is the [MASK] of France."
  bert-jax convert roberta-base --longformer 4096 --output longformer-base

SOURCE is a folder of Google's release of BERT (bert_config.json and *.ckpt.index) or ELECTRA
(*.index), or of Hugging Face (config.json and model.safetensors or pytorch_model.bin, also in
shards). The output is a Hugging Face folder.
`bert-jax pretrain --init-from FOLDER` continues pretraining from it, or directly from SOURCE.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the checkpoint, the new folder, and what is made of it."""

    source: str = positional("SOURCE", "folder with a checkpoint")
    output: str = flag("FOLDER", "new folder to write", REQUIRED)
    generator: bool = switch(
        "convert the generator of Google's ELECTRA checkpoint, not the discriminator"
    )
    longformer: int | None = flag(
        "TOKENS", "maximum length of a Longformer to make from SOURCE, which has learned positions"
    )
    window: int | None = flag(
        "TOKENS",
        "attention window of the Longformer, an even number, with --longformer (default: 512)",
    )
    ignore: tuple[str, ...] = flag(
        "NAME",
        "tensors to leave out, such as 'cls.structure.*', of a Hugging Face folder of an encoder "
        "with a head that its family does not have",
        (),
    )

    def __post_init__(self) -> None:
        check_needs(self, "longformer", "window")


def run(args: Arguments) -> int:
    """Converts the checkpoint and prints which parts the source does not have."""
    from bert_jax.export.export import export
    from bert_jax.io.atomic_io import check_new_folder
    from bert_jax.pretrained.initial import load_generator, load_model_or_tf1
    from bert_jax.pretrained.load import require_nothing_to_ignore
    from bert_jax.pretrained.seq2seq import is_seq2seq

    # Before the checkpoint is loaded, which takes seconds.
    check_new_folder(Path(args.output))
    if is_seq2seq(args.source):
        if name := first_given(args, "generator", "longformer"):
            raise ConfigError(f"{name} is not supported for encoder-decoders; remove it")
        from bert_jax.export.seq2seq import export_seq2seq
        from bert_jax.pretrained.seq2seq import load_seq2seq

        require_nothing_to_ignore(args.source, args.ignore)
        export_seq2seq(load_seq2seq(args.source), Path(args.output))
        logger.info("converted %s to %s", args.source, args.output)
        return 0
    if args.generator:
        require_nothing_to_ignore(f"the generator of {args.source}", args.ignore)
        model = load_generator(args.source)
    else:
        model = load_model_or_tf1(args.source, args.ignore)
    if args.longformer is not None:
        from bert_jax.pretrained.longformer import make_longformer

        window = 512 if args.window is None else args.window
        model = make_longformer(model, max_length=args.longformer, attention_window=window)
    export(model, Path(args.output))
    if model.missing:
        logger.warning("%s has no %s", args.source, ", no ".join(model.missing))
    if model.tokenizer is None:
        logger.warning("%s has no vocabulary files", args.source)
    logger.info("converted %s to %s", args.source, args.output)
    return 0
