"""Writes a vocabulary's folder: every file aside, then into place, the description last."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.aside import write_aside
from bert_jax.text.vocabulary import DESCRIPTION_FILE, TOKENIZER_CONFIG_FILE, Vocabulary


def save_folder(
    folder: str | Path,
    *,
    files: Mapping[str, str | bytes],
    tokenizer_config: Mapping[str, Any],
    vocabulary: Vocabulary,
    main: str,
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
        "kind": vocabulary.kind,
        "size": vocabulary.size,
        "file": main,
        "fingerprint": vocabulary.fingerprint,
    }
    (folder / DESCRIPTION_FILE).unlink(missing_ok=True)
    for name, content in {
        **files,
        TOKENIZER_CONFIG_FILE: as_json(tokenizer_config),
        # What releases of transformers before 5 read beside it.
        "special_tokens_map.json": as_json(
            {f"{role}_token": token for role, token in vocabulary.special.as_dict().items()}
        ),
        DESCRIPTION_FILE: as_json(description),
    }.items():
        write_aside(folder / name, content)


def as_json(value: Any) -> str:
    """Indented JSON that ends in a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
