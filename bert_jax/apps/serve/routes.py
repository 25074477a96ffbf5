"""Lists the routes that run a model: path, type of the request, handler, and what it answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bert_jax.apps.serve import handlers, openai_handlers, token_handlers
from bert_jax.apps.serve import requests as types
from bert_jax.apps.serve.served_models import Ability


@dataclass(frozen=True, kw_only=True)
class ComputeRoute:
    """Describes one route.

    Attributes:
      path: the path, with POST.
      request_type: the msgspec type of the JSON of a request.
      handler: returns the JSON of the answer.
      ability: what the model must have; None if any model has it.
      answer: a JSON schema of the answer.
    """

    path: str
    request_type: type[Any]
    handler: Callable[[handlers.Call, Any], Awaitable[Any]]
    ability: Ability | None
    answer: dict[str, Any]


_NUMBER, _TEXT, _INTEGER = {"type": "number"}, {"type": "string"}, {"type": "integer"}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _or_list(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of one answer, or of a list of them for a list of inputs."""
    return {"anyOf": [schema, _list(schema)]}


_SCORES = _list(_object(score=_NUMBER, label=_TEXT))
_ENTITIES = _list(
    _object(entity_group=_TEXT, score=_NUMBER, word=_TEXT, start=_INTEGER, end=_INTEGER)
)
_ANSWER = _object(score=_NUMBER, start=_INTEGER, end=_INTEGER, answer=_TEXT)
_CANDIDATES = _list(_object(score=_NUMBER, token=_INTEGER, token_str=_TEXT, sequence=_TEXT))
_TOKENS = _list(
    _object(
        id=_INTEGER,
        text=_TEXT,
        special={"type": "boolean"},
        start={"type": ["integer", "null"]},
        stop={"type": ["integer", "null"]},
    )
)
_USAGE = _object(prompt_tokens=_INTEGER, total_tokens=_INTEGER)
_EMBEDDINGS = _object(
    object=_TEXT,
    data=_list(_object(object=_TEXT, index=_INTEGER, embedding={"anyOf": [_list(_NUMBER), _TEXT]})),
    model=_TEXT,
    usage=_USAGE,
)

COMPUTE_ROUTES: tuple[ComputeRoute, ...] = (
    ComputeRoute(
        path="/embed",
        request_type=types.EmbedRequest,
        handler=handlers.embed,
        ability="embed",
        answer=_list(_list(_NUMBER)),
    ),
    ComputeRoute(
        path="/embed_all",
        request_type=types.EmbedAllRequest,
        handler=handlers.embed_all,
        ability="embed",
        answer=_list(_list(_list(_NUMBER))),
    ),
    ComputeRoute(
        path="/similarity",
        request_type=types.SimilarityRequest,
        handler=handlers.similarity,
        ability="embed",
        answer=_list(_NUMBER),
    ),
    ComputeRoute(
        path="/predict",
        request_type=types.PredictRequest,
        handler=handlers.predict,
        ability="predict",
        answer=_or_list(_SCORES),
    ),
    ComputeRoute(
        path="/rerank",
        request_type=types.RerankRequest,
        handler=handlers.rerank,
        ability="rerank",
        answer=_list(_object(index=_INTEGER, score=_NUMBER, text=_TEXT)),
    ),
    ComputeRoute(
        path="/tag",
        request_type=types.TextsRequest,
        handler=handlers.tag,
        ability="tag",
        answer=_or_list(_ENTITIES),
    ),
    ComputeRoute(
        path="/answer",
        request_type=types.AnswerRequest,
        handler=handlers.answer,
        ability="answer",
        answer=_or_list(_ANSWER),
    ),
    ComputeRoute(
        path="/fill_mask",
        request_type=types.FillMaskRequest,
        handler=handlers.fill_mask,
        ability="fill_mask",
        answer=_or_list(_CANDIDATES),
    ),
    ComputeRoute(
        path="/attention",
        request_type=types.AttentionRequest,
        handler=handlers.attention,
        ability="attention",
        answer=_object(tokens=_list(_TEXT), attentions=_list(_list(_list(_list(_NUMBER))))),
    ),
    ComputeRoute(
        path="/tokenize",
        request_type=types.TokenizeRequest,
        handler=token_handlers.tokenize,
        ability=None,
        answer=_list(_TOKENS),
    ),
    ComputeRoute(
        path="/decode",
        request_type=types.DecodeRequest,
        handler=token_handlers.decode,
        ability=None,
        answer=_list(_TEXT),
    ),
    ComputeRoute(
        path="/v1/embeddings",
        request_type=types.OpenAIEmbeddingRequest,
        handler=openai_handlers.embeddings,
        ability="embed",
        answer=_EMBEDDINGS,
    ),
)
