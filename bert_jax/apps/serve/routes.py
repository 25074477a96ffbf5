"""Lists the routes that run a model, and describes all routes: OpenAPI schema and page /docs."""

import html
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from bert_jax.apps.serve import handlers
from bert_jax.apps.serve import requests as types
from bert_jax.apps.serve.served_models import Ability
from bert_jax.version import __version__


@dataclass(frozen=True)
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


_VECTOR = _list(_NUMBER)
# "predicted" is there if a text may have several labels.
_SCORES = _list(_object(score=_NUMBER, label=_TEXT, predicted={"type": "boolean"}))
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
_SPARSE = _list(_list(_object(index=_INTEGER, value=_NUMBER)))
_MULTI_VECTOR = _object(
    object=_TEXT,
    data=_list(_object(object=_TEXT, index=_INTEGER, embeddings=_list(_VECTOR))),
    model=_TEXT,
    usage=_USAGE,
)
_HEADS = _object(dense=_list(_VECTOR), sparse=_SPARSE, multi_vector=_list(_list(_VECTOR)))
_RANKED_TEXTS = _list(_object(index=_INTEGER, score=_NUMBER, text=_TEXT))
_ATTENTION = _object(tokens=_list(_TEXT), attentions=_list(_list(_list(_list(_NUMBER)))))

COMPUTE_ROUTES: tuple[ComputeRoute, ...] = (
    ComputeRoute("/embed", types.EmbedRequest, handlers.embed, "embed", _list(_VECTOR)),
    ComputeRoute(
        "/embed_all",
        types.EmbedAllRequest,
        handlers.embed_all,
        "embed",
        _list(_list(_VECTOR)),
    ),
    ComputeRoute(
        "/embed_sparse", types.EmbedSparseRequest, handlers.embed_sparse, "embed_sparse", _SPARSE
    ),
    ComputeRoute(
        "/v1/multi-vector",
        types.MultiVectorRequest,
        handlers.multi_vector,
        "multi_vector",
        _MULTI_VECTOR,
    ),
    ComputeRoute(
        "/embed_heads", types.EmbedHeadsRequest, handlers.embed_heads, "embed_heads", _HEADS
    ),
    ComputeRoute("/similarity", types.SimilarityRequest, handlers.similarity, "embed", _VECTOR),
    ComputeRoute("/predict", types.PredictRequest, handlers.predict, "predict", _or_list(_SCORES)),
    ComputeRoute("/rerank", types.RerankRequest, handlers.rerank, "rerank", _RANKED_TEXTS),
    ComputeRoute("/tag", types.TextsRequest, handlers.tag, "tag", _or_list(_ENTITIES)),
    ComputeRoute("/answer", types.AnswerRequest, handlers.answer, "answer", _or_list(_ANSWER)),
    ComputeRoute(
        "/fill_mask", types.FillMaskRequest, handlers.fill_mask, "fill_mask", _or_list(_CANDIDATES)
    ),
    ComputeRoute("/attention", types.AttentionRequest, handlers.attention, "attention", _ATTENTION),
    ComputeRoute("/tokenize", types.TokenizeRequest, handlers.tokenize, None, _list(_TOKENS)),
    ComputeRoute("/decode", types.DecodeRequest, handlers.decode, None, _list(_TEXT)),
    ComputeRoute(
        "/v1/embeddings", types.OpenAIEmbeddingRequest, handlers.embeddings, "embed", _EMBEDDINGS
    ),
)


_PLAIN_ROUTES = {
    "/health": "Answers 200 with the number of compiled programs if the server is ready, else 503.",
    "/ping": "Answers as /health.",
    "/info": "Describes a model and the limits of the server; ?model= chooses the model.",
    "/v1/models": "Lists the models with their routes.",
    "/metrics": "Gives the metrics in Prometheus' text format.",
}
_STATUSES = {
    "400": "an input is empty; under /v1 any invalid request",
    "401": "the API key is missing or wrong",
    "413": "the request is too large",
    "422": "the request is invalid",
    "424": "the model failed on the request",
    "429": "the queue is full, or there are too many requests; Retry-After has the seconds to wait",
    "503": "the server is not ready",
}


def openapi_schema() -> dict[str, Any]:
    """Returns the OpenAPI 3.1 schema."""
    request_types = [route.request_type for route in COMPUTE_ROUTES]
    schemas, components = msgspec.json.schema_components(
        request_types, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {
        path: {"get": {"summary": summary, "responses": {"200": {"description": "OK"}}}}
        for path, summary in _PLAIN_ROUTES.items()
    }
    for route, schema in zip(COMPUTE_ROUTES, schemas, strict=True):
        paths[route.path] = {"post": _operation(route, schema)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bert_jax", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: ComputeRoute, schema: dict[str, Any]) -> dict[str, Any]:
    errors = {status: {"description": meaning} for status, meaning in _STATUSES.items()}
    answer = {"description": "OK", "content": {"application/json": {"schema": route.answer}}}
    return {
        "summary": inspect.getdoc(route.handler),
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": answer, **errors},
        "security": [{"key": []}, {}],
    }


def docs_page(schema: dict[str, Any]) -> str:
    """Returns the page /docs: every route with the schemas of its request and its answer."""
    components = schema["components"]["schemas"]
    sections: list[str] = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts = [f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"]
            parts.append(f"<p>{html.escape(operation['summary'])}</p>")
            if "requestBody" in operation:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]
                request = components[reference["$ref"].rpartition("/")[2]]
                answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
                parts += [_details("Request", request), _details("Answer", answer)]
            sections.append(f"<section>{''.join(parts)}</section>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<title>bert_jax: routes</title><link rel="stylesheet" href="/page/style.css"></head>'
        '<body><main><h1>Routes</h1><p><a href="/openapi.json">OpenAPI schema</a></p>'
        f"{''.join(sections)}</main></body></html>"
    )


def _details(title: str, schema: dict[str, Any]) -> str:
    text = html.escape(json.dumps(schema, indent=2))
    return f"<details><summary>{title}</summary><pre>{text}</pre></details>"
