"""Builds the OpenAPI schema of the routes, and a page about them that needs no network."""

import html
import inspect
import json
from typing import Any

import msgspec

from bert_jax.apps.serve.routes import COMPUTE_ROUTES, ComputeRoute
from bert_jax.version import __version__

_PLAIN_ROUTES = {
    "/health": "Answers 200 if the server is ready, and 503 while it compiles or stops.",
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
