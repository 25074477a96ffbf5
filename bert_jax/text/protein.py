"""Reads and makes the tokenizer of protein sequences: one token for each amino acid (ESM-2).

The ids of a sequence are those of Hugging Face's `EsmTokenizer`. White space separates sequences
and is no token. Characters without a token, such as lower-case letters, are unknown; several of
them in a row are one unknown token.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from bert_jax.text.fast_tokenizer import HuggingFaceTokenizer, read_vocabulary
from bert_jax.text.input_template import BertTemplate
from bert_jax.text.tokenizer import SpecialTokens, find_special_tokens
from bert_jax.text.tokenizer_json import make_post_processor

ESM_TOKENS = SpecialTokens(pad="<pad>", unk="<unk>", cls="<cls>", sep="<eos>", mask="<mask>")
# X, B, U, Z and O are ambiguous and rare amino acids; "." and "-" are gaps of alignments.
_ESM_VOCABULARY = (
    *("<cls>", "<pad>", "<eos>", "<unk>"),
    *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
    *("<null_1>", "<mask>"),
)


def load_protein_tokenizer(path: Path, config: Mapping[str, Any]) -> HuggingFaceTokenizer:
    """Loads the `vocab.txt` of an `EsmTokenizer`: the token on line n + 1 has id n.

    Args:
      config: the content of `tokenizer_config.json`.

    Raises:
      UserError: the file is empty or damaged, or has no token for a special one.
    """
    tokens = read_vocabulary(path)
    vocab = {token: i for i, token in enumerate(tokens)}
    return _make_tokenizer(tokens, find_special_tokens(vocab, config, path), path)


def esm_tokenizer() -> HuggingFaceTokenizer:
    """Returns the tokenizer of ESM-2, which has 33 tokens."""
    return _make_tokenizer(_ESM_VOCABULARY, ESM_TOKENS, "ESM-2")


def _make_tokenizer(
    tokens: Sequence[str], special_tokens: SpecialTokens, source: str | Path
) -> HuggingFaceTokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = BackendTokenizer(models.WordLevel(vocab, unk_token=special_tokens.unk))
    letters = "".join(re.escape(token) for token in tokens if len(token) == 1)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(f"[{letters}]"), "isolated")]
    )
    backend.decoder = decoders.Fuse()
    # Longer tokens are found in the text before it is split into letters.
    roles = set(special_tokens.as_dict().values())
    for token in tokens:
        if token in roles:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif len(token) > 1:
            backend.add_tokens([AddedToken(token, normalized=False)])
    backend.post_processor = make_post_processor(
        backend, BertTemplate(), special_tokens.cls, special_tokens.sep
    )
    return HuggingFaceTokenizer(backend, special_tokens, source)
