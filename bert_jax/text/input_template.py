"""Defines input templates: where a model expects special tokens around one text or a pair.

The template belongs to the tokenizer, as in Hugging Face's `build_inputs_with_special_tokens`:

    BertTemplate      [CLS] A [SEP]    [CLS] A [SEP] B [SEP]      token types 0 and 1
    RobertaTemplate   <s> A </s>       <s> A </s></s> B </s>      token types 0
    T5Template        A </s>           A </s> B </s>              token types 0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bert_jax.errors import UserError

Ids = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class InputTemplate:
    """Adds special tokens to token ids; there is a subclass for each template.

    Attributes:
      name: value of the field "template" in `vocabulary.json` of a saved tokenizer.
      separators_between: number of separators between the two texts of a pair.
      second_token_type: token type of the second text and of the separator after it.
    """

    name: ClassVar[str]
    separators_between: ClassVar[int]
    second_token_type: ClassVar[int]

    @property
    def num_single_special_tokens(self) -> int:
        """Returns the number of special tokens that are added to one text."""
        return 2

    @property
    def num_pair_special_tokens(self) -> int:
        """Returns the number of special tokens that are added to a pair."""
        return 2 + self.separators_between

    def second_start(self, first_length: int) -> int:
        """Returns the position of the second text's first token."""
        return 1 + first_length + self.separators_between

    def build_inputs(self, cls_id: int, sep_id: int, first: Ids, second: Ids | None) -> np.ndarray:
        """Returns the int32 ids of one text, or of a pair, with its special tokens."""
        if second is None:
            length = len(first) + self.num_single_special_tokens
        else:
            length = len(first) + len(second) + self.num_pair_special_tokens
        input_ids = np.empty(length, np.int32)
        self.write_inputs(input_ids, cls_id, sep_id, first, second)
        return input_ids

    def write_inputs(
        self, row: np.ndarray, cls_id: int, sep_id: int, first: Ids, second: Ids | None = None
    ) -> int:
        """Writes what `build_inputs` returns to the start of a row; returns the length."""
        # Called for every row of a batch: slices are much faster than joining arrays.
        end = 1 + len(first)
        row[0] = cls_id
        row[1:end] = first
        if second is not None:
            start = self.second_start(len(first))
            row[end:start] = sep_id
            end = start + len(second)
            row[start:end] = second
        row[end] = sep_id
        return end + 1

    def patterns(self, cls_token: str, sep_token: str) -> dict[str, str]:
        """Returns the template as arguments of `tokenizers.processors.TemplateProcessing`."""
        single = f"{cls_token}:0 $A:0 {sep_token}:0"
        between = f" {sep_token}:0" * (self.separators_between - 1)
        second = self.second_token_type
        return {"single": single, "pair": f"{single}{between} $B:{second} {sep_token}:{second}"}

    def token_type_ids(self, first_length: int, second_length: int | None) -> np.ndarray:
        """Returns the int32 token types of what `build_inputs` returns for these lengths."""
        if second_length is None:
            return np.zeros(first_length + self.num_single_special_tokens, np.int32)
        length = first_length + second_length + self.num_pair_special_tokens
        token_type_ids = np.zeros(length, np.int32)
        # BERT counts the separator after the first text as part of that text.
        token_type_ids[self.second_start(first_length) :] = self.second_token_type
        return token_type_ids


@dataclass(frozen=True)
class BertTemplate(InputTemplate):
    """Builds [CLS] A [SEP] B [SEP] with token types 0 and 1 (Devlin et al. 2019, section 3.1)."""

    name = "bert"
    separators_between = 1
    second_token_type = 1


@dataclass(frozen=True)
class RobertaTemplate(InputTemplate):
    """Builds <s> A </s></s> B </s> without token types, as in fairseq and Hugging Face."""

    name = "roberta"
    separators_between = 2
    second_token_type = 0


# T5 has no first special token and no mask, but every tokenizer here has a name for them: the first
# one, never written, has the name of the end token, and <extra_id_0> stands for the mask.
@dataclass(frozen=True)
class T5Template(InputTemplate):
    """Builds A </s> B </s> without token types and without a first special token, as T5 does."""

    name = "t5"
    separators_between = 1
    second_token_type = 0

    @property
    def num_single_special_tokens(self) -> int:
        """Returns 1."""
        return 1

    @property
    def num_pair_special_tokens(self) -> int:
        """Returns 2."""
        return 2

    def second_start(self, first_length: int) -> int:
        """Returns the position of the second text's first token."""
        return first_length + 1

    def write_inputs(
        self, row: np.ndarray, cls_id: int, sep_id: int, first: Ids, second: Ids | None = None
    ) -> int:
        """Writes what `build_inputs` returns to the start of a row; returns the length."""
        del cls_id
        end = len(first)
        row[:end] = first
        if second is not None:
            row[end] = sep_id
            start = end + 1
            end = start + len(second)
            row[start:end] = second
        row[end] = sep_id
        return end + 1

    def patterns(self, cls_token: str, sep_token: str) -> dict[str, str]:
        """Returns the template as arguments of `tokenizers.processors.TemplateProcessing`."""
        del cls_token
        single = f"$A:0 {sep_token}:0"
        return {"single": single, "pair": f"{single} $B:0 {sep_token}:0"}


TEMPLATES: tuple[InputTemplate, ...] = (BertTemplate(), RobertaTemplate(), T5Template())


# Folders that were saved before there were two templates have BERT's, because BERT models were
# trained with it.
def default_template(cls_token: str) -> InputTemplate:
    """Returns RoBERTa's template for a tokenizer whose first token is <s>, else BERT's."""
    return RobertaTemplate() if cls_token == "<s>" else BertTemplate()


def template_by_name(name: object, source: str) -> InputTemplate:
    """Returns the template of a name in the file of a saved tokenizer.

    Args:
      name: the value of the field "template".
      source: the file, with which an error message begins.

    Raises:
      UserError: no template has this name.
    """
    for template in TEMPLATES:
        if template.name == name:
            return template
    expected = " or ".join(repr(template.name) for template in TEMPLATES)
    raise UserError(
        f'{source}: the field "template" is {name!r}, expected {expected}; correct it, or copy the '
        "tokenizer again"
    )
