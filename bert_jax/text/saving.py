"""Saves a tokenizer's folder; its description is written last and so marks it as complete."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import atomic_write, make_folder
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_INFO_FILE, Tokenizer


def save_tokenizer(
    folder: str | Path,
    *,
    files: Mapping[str, str | bytes],
    tokenizer_config: Mapping[str, Any],
    tokenizer: Tokenizer,
    main_file: str,
) -> None:
    """Writes what `load_tokenizer` and `AutoTokenizer.from_pretrained` read.

    Args:
      folder: created if needed; files of the same names are replaced.
      files: name -> content.
      tokenizer_config: content of tokenizer_config.json (class, special tokens).
      tokenizer: the tokenizer that is saved.
      main_file: the one of `files` that `load_tokenizer` opens.
    """
    folder = Path(folder)
    make_folder(folder)
    description = {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "file": main_file,
        "fingerprint": tokenizer.fingerprint,
        "template": tokenizer.template.name,
    }
    (folder / TOKENIZER_INFO_FILE).unlink(missing_ok=True)
    for name, content in {
        **files,
        TOKENIZER_CONFIG_FILE: format_json(tokenizer_config),
        # Releases of transformers before 5 read the special tokens from this file.
        "special_tokens_map.json": format_json(
            {f"{role}_token": token for role, token in tokenizer.special_tokens.as_dict().items()}
        ),
        TOKENIZER_INFO_FILE: format_json(description),
    }.items():
        atomic_write(folder / name, content)


def format_json(value: Any) -> str:
    """Returns a value as indented JSON that ends in a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
