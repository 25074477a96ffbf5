"""Defines the JSON of requests as msgspec types, and converts their inputs to lists.

The shapes are as in text-embeddings-inference (TEI), OpenAI under /v1, Jina for /v1/multi-vector,
Cohere for `documents` in /rerank, and of transformers' pipelines for tags, answers and masks. Every
request may name a model, as "model" or "model:adapter".
"""

from typing import Literal

from msgspec import Struct

from bert_jax.apps.serve.request_error import RequestError
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.models.sentence_encoder.config import TextRole

TextInput = str | list[int]
"""A text, or its token ids."""
Direction = Literal["Left", "Right", "left", "right"]
"""The end at which a long text loses tokens."""


class ModelRequest(Struct, kw_only=True):
    """Holds what every request may have."""

    model: str | None = None


class TruncationRequest(ModelRequest, kw_only=True):
    """Holds how long texts are read; `truncate` false refuses them."""

    truncate: bool | None = None
    truncation_direction: Direction = "Right"


class EmbedRequest(TruncationRequest, kw_only=True):
    """Asks for a vector for each text."""

    inputs: str | list[str | int | list[int]]
    prompt_name: str | None = None
    normalize: bool = True
    dimensions: int | None = None


class EmbedAllRequest(TruncationRequest, kw_only=True):
    """Asks for a vector for each token of each text."""

    inputs: str | list[str | int | list[int]]
    prompt_name: str | None = None


class EmbedSparseRequest(ModelRequest, kw_only=True):
    """Asks for the weights of tokens of each text; `input_type` is Jina's name."""

    inputs: str | list[str]
    input_type: TextRole = "document"
    prompt_name: str | None = None
    truncate: bool | None = None


class EmbedHeadsRequest(ModelRequest, kw_only=True):
    """Asks for the embeddings of texts by several heads, by default by all that a model has."""

    inputs: str | list[str]
    heads: list[EmbeddingKind] | None = None
    prompt_name: str | None = None
    truncate: bool | None = None


class MultiVectorRequest(Struct, kw_only=True):
    """Asks for the vectors of all tokens of each text, in Jina's shape."""

    input: str | list[str]
    model: str | None = None
    input_type: TextRole = "document"


class PredictRequest(TruncationRequest, kw_only=True):
    """Asks for the score of each label; two strings in a flat list are one pair."""

    inputs: str | list[str | list[str]]
    raw_scores: bool = False


class RerankRequest(TruncationRequest, kw_only=True):
    """Asks for the relevance of texts to a query; `documents` and `top_n` are Cohere's names."""

    query: str
    texts: list[str] | None = None
    documents: list[str] | None = None
    raw_scores: bool = False
    return_text: bool = False
    return_documents: bool = False
    top_n: int | None = None


class SimilarityInputs(Struct, kw_only=True):
    """Holds a sentence and those to which it is compared."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Struct, kw_only=True):
    """Holds how the sentences are read."""

    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    prompt_name: str | None = None


class SimilarityRequest(ModelRequest, kw_only=True):
    """Asks for the similarity of one sentence to others."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class TokenizeRequest(ModelRequest, kw_only=True):
    """Asks for the tokens of texts."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None


class DecodeRequest(ModelRequest, kw_only=True):
    """Asks for the text of token ids."""

    ids: list[int | list[int]]
    skip_special_tokens: bool = True


class TextsRequest(ModelRequest, kw_only=True):
    """Asks for the entities of texts."""

    inputs: str | list[str]


class AttentionRequest(ModelRequest, kw_only=True):
    """Asks for the attention weights of a text."""

    inputs: str


class FillMaskRequest(ModelRequest, kw_only=True):
    """Asks for tokens in place of the masks of texts."""

    inputs: str | list[str]
    top_k: int = 5


class QuestionInput(Struct, kw_only=True):
    """Holds a question and the text that may have its answer."""

    question: str
    context: str


class AnswerRequest(ModelRequest, kw_only=True):
    """Asks for answers to questions."""

    inputs: QuestionInput | list[QuestionInput]


class OpenAIEmbeddingRequest(Struct, kw_only=True):
    """Asks for embeddings in OpenAI's shape; an array of ints is the token ids of one text."""

    input: str | list[str | int | list[int]]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


def text_inputs(value: str | list[str | int | list[int]], name: str = "inputs") -> list[TextInput]:
    """Converts `inputs` to a list of texts or token ids.

    Raises:
      RequestError: there are none, one is empty, or token ids and texts are mixed.
    """
    if isinstance(value, str):
        items: list[TextInput] = [value]
    elif value and all(isinstance(item, int) for item in value):
        items = [[item for item in value if isinstance(item, int)]]
    else:
        items = []
        for index, item in enumerate(value):
            if isinstance(item, int):
                message = f"`{name}[{index}]` is a number among texts; expected a text or token ids"
                raise RequestError("validation", message, name)
            items.append(item)
    require_nonempty(items, name)
    return items


def require_nonempty(items: list[TextInput] | list[str], name: str) -> None:
    """Raises a RequestError if there is no item, or one that is empty."""
    if not items:
        raise RequestError("empty", f"`{name}` is empty; expected at least one text", name)
    for index, item in enumerate(items):
        if not item or (isinstance(item, str) and not item.strip()):
            message = f"`{name}[{index}]` is an empty text; expected at least one word"
            raise RequestError("empty", message, name)


def predict_inputs(value: str | list[str | list[str]]) -> tuple[list[str | tuple[str, str]], bool]:
    """Converts `inputs` of /predict; returns texts or pairs, and whether they are a batch.

    As in TEI, a flat list of two strings is one pair.

    Raises:
      RequestError: there are none, one is empty, or one has more than two texts.
    """
    if isinstance(value, str):
        require_nonempty([value], "inputs")
        return [value], False
    flat = [item for item in value if isinstance(item, str)]
    if len(flat) == len(value):
        return [_text_or_pair(flat, "inputs")], False
    items: list[str | tuple[str, str]] = []
    for index, item in enumerate(value):
        if isinstance(item, str):
            message = (
                f"`inputs[{index}]` is a string among lists; expected a list of one text or of a "
                "pair of texts"
            )
            raise RequestError("validation", message, "inputs")
        items.append(_text_or_pair(item, f"inputs[{index}]"))
    return items, True


def _text_or_pair(texts: list[str], name: str) -> str | tuple[str, str]:
    require_nonempty(texts, name)
    match texts:
        case [text]:
            return text
        case [first, second]:
            return first, second
        case _:
            message = (
                f"`{name}` has {len(texts)} texts; expected one text or a pair of two; a batch is "
                "a list of lists"
            )
            raise RequestError("validation", message, "inputs")
