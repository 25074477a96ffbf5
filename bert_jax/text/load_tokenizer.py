"""Loads a tokenizer from any supported file or folder.

    tokenizer = load_tokenizer("vocab.txt")    # or tokenizer.json, vocab.json, *.model, a folder
    tokenizer.encode("Some text.")             # ids without special tokens
    tokenizer.save("folder")                   # AutoTokenizer.from_pretrained("folder") opens it

The libraries `tokenizers` and `sentencepiece` are imported only when a tokenizer needs them.
"""

from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.io.json_io import read_json_object
from bert_jax.text.input_template import BertTemplate, template_by_name
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_INFO_FILE, Tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Loads a tokenizer from a file or folder.

    Args:
      path: `vocab.txt` (WordPiece, or amino acids with the class `EsmTokenizer`),
        `tokenizer.json`, `vocab.json` with `merges.txt` in the same folder (byte-level BPE), a
        SentencePiece `.model`, or a folder with one of these. A `tokenizer_config.json` in the same
        folder has the class and sets lower-casing and special tokens. Without one, a vocab.txt is
        uncased if none of its tokens contains an upper-case letter.

    Raises:
      UserError: the path does not exist, a file is damaged, a token occurs twice, or a special
        token is missing. (Special tokens that a `.model` lacks are appended to its vocabulary.)
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"tokenizer {path}: no such file or folder. Expected vocab.txt, tokenizer.json, "
            "vocab.json with merges.txt, a SentencePiece .model, or a folder with one of these; "
            "`bert-jax tokenizer train` makes one"
        )
    if path.is_dir():
        return _load_folder(path)
    return _load_file(path)


def _load_folder(folder: Path) -> Tokenizer:
    info_file = folder / TOKENIZER_INFO_FILE
    tokenizer_info = read_json_object(info_file) if info_file.exists() else {}
    for name in ("file", "fingerprint"):
        if not isinstance(tokenizer_info.get(name, ""), str):
            raise UserError(
                f"{info_file}: {name} is {tokenizer_info[name]!r}; expected a string. Delete the "
                "file if you changed it; it is written with the tokenizer"
            )
    # A folder saved here names its main file, because it also has files for other programs.
    names = [tokenizer_info["file"]] if "file" in tokenizer_info else []
    # Of the files of other programs, only tokenizer.json contains every rule.
    names += ["tokenizer.json", "vocab.txt", "vocab.json"]
    files = [folder / name for name in names if (folder / name).exists()]
    files += sorted(folder.glob("*.model"))
    if not files:
        raise UserError(
            f"tokenizer {folder}: the folder contains no tokenizer; expected tokenizer.json, "
            "vocab.txt, vocab.json with merges.txt, or a SentencePiece .model"
        )
    tokenizer = _load_file(files[0])
    expected = tokenizer_info.get("fingerprint", tokenizer.fingerprint)
    if tokenizer.fingerprint != expected:
        raise UserError(
            f"tokenizer {folder}: its files were changed after it was saved (fingerprint "
            f"{tokenizer.fingerprint[:12]}, expected {expected[:12]} from {TOKENIZER_INFO_FILE}). "
            f"Restore the folder, or delete {TOKENIZER_INFO_FILE} if you changed it on purpose"
        )
    if tokenizer_info:
        # Versions that saved no template put every pair into BERT's.
        name = tokenizer_info.get("template", BertTemplate.name)
        tokenizer.template = template_by_name(name, str(info_file))
    return tokenizer


def _load_file(path: Path) -> Tokenizer:
    config_file = path.parent / TOKENIZER_CONFIG_FILE
    config = read_json_object(config_file) if config_file.exists() else {}
    if path.suffix == ".model":
        from bert_jax.text import sentencepiece

        if sentencepiece.is_t5_model(path, config):
            return sentencepiece.load_t5(path, config)
        if sentencepiece.is_albert_model(path, config):
            return sentencepiece.load_albert(path, config)
        from bert_jax.text.sentencepiece import load_sentencepiece

        return load_sentencepiece(path, config)
    from bert_jax.text import fast_tokenizer

    if path.name.endswith("tokenizer.json"):
        return fast_tokenizer.load_tokenizer_json(path, config)
    if path.suffix == ".txt" and config.get("tokenizer_class") == "EsmTokenizer":
        from bert_jax.text import protein

        return protein.load_protein_tokenizer(path, config)
    if path.suffix == ".txt":
        return fast_tokenizer.load_wordpiece(path, config)
    if path.suffix == ".json":
        return fast_tokenizer.load_byte_level_bpe(path, config)
    raise UserError(
        f"tokenizer {path}: the file name ends in {path.suffix!r}; expected vocab.txt, "
        "tokenizer.json, vocab.json (with merges.txt in the same folder) or a SentencePiece .model"
    )
