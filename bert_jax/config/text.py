"""Defines the settings of tokenizer training (`bert-jax tokenizer train`)."""

from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.errors import ConfigError, check_range

TokenizerKind = Literal["wordpiece", "bpe", "unigram", "amino_acids"]
TOKENIZER_KINDS: tuple[TokenizerKind, ...] = get_args(TokenizerKind)


@dataclass(frozen=True, kw_only=True)
class TokenizerTrainingConfig:
    """Sets how a tokenizer is trained.

    Attributes:
      kind: "wordpiece" (BERT), "bpe" (byte-level BPE, RoBERTa), "unigram" (ALBERT, T5);
        "amino_acids" has the 33 tokens of ESM-2 for proteins, whatever the text and other fields.
      vocab_size: number of ids, special tokens included; a small corpus may give fewer.
      cased: whether to keep upper case (and, for WordPiece, accents). Byte-level BPE always does.
      min_frequency: how often a pair of tokens must occur to be merged (WordPiece and BPE).
      sentinels: number of sentinel tokens <extra_id_0>, ... for T5, part of `vocab_size`; Unigram
        only. The other special tokens are then T5's: <pad>, </s> and <unk>.
      character_coverage: fraction of all characters that the vocabulary must cover (WordPiece and
        Unigram); rarer characters become the unknown token. Byte-level BPE covers every character.
    """

    kind: TokenizerKind = "wordpiece"
    vocab_size: int = 30522
    cased: bool = False
    min_frequency: int = 2
    character_coverage: float = 0.99998
    sentinels: int = 0

    def __post_init__(self):
        if self.kind not in TOKENIZER_KINDS:
            raise ConfigError(f"kind is {self.kind!r}; expected {', '.join(TOKENIZER_KINDS)}")
        check_range("vocab_size", self.vocab_size, at_least=16)  # BERT has 30,522
        check_range("sentinels", self.sentinels, at_least=0, at_most=self.vocab_size // 2)
        if self.sentinels and self.kind != "unigram":
            raise ConfigError(
                f"sentinels is {self.sentinels} and kind is {self.kind!r}; expected kind 'unigram' "
                "as for T5, or 0 sentinels"
            )
        check_range("min_frequency", self.min_frequency, at_least=1)
        check_range("character_coverage", self.character_coverage, above=0, at_most=1)
