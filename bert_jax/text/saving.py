"""Writes a vocabulary's folder: every file aside, then into place, the description last."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import atomic_write
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_INFO_FILE, Tokenizer


def save_tokenizer(
    folder: str | Path,
    *,
    files: Mapping[str, str | bytes],
    tokenizer_config: Mapping[str, Any],
    tokenizer: Tokenizer,
    main_file: str,
) -> None:
    """Writes what `load_vocabulary` and `AutoTokenizer.from_pretrained` read.

    Args:
      folder: made when it is not there; files of the same names are replaced.
      files: name -> content.
      tokenizer_config: content of tokenizer_config.json (class, special tokens).
      vocabulary: what is being saved.
      main: the file among `files` that `load_vocabulary` shall open.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    description = {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "file": main_file,
        "fingerprint": tokenizer.fingerprint,
    }
    (folder / TOKENIZER_INFO_FILE).unlink(missing_ok=True)
    for name, content in {
        **files,
        TOKENIZER_CONFIG_FILE: format_json(tokenizer_config),
        # What releases of transformers before 5 read beside it.
        "special_tokens_map.json": format_json(
            {f"{role}_token": token for role, token in tokenizer.special_tokens.as_dict().items()}
        ),
        TOKENIZER_INFO_FILE: format_json(description),
    }.items():
        atomic_write(folder / name, content)


def format_json(value: Any) -> str:
    """Indented JSON that ends in a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
