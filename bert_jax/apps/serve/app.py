"""Builds the ASGI application of a server: its routes, and what happens around each request.

A request for computation is read with limits on its size and time, checked against its msgspec
type, computed while the connection is watched, and answered with TEI's headers. A client that
disconnects cancels its request.
"""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from bert_jax.apps.serve import handlers
from bert_jax.apps.serve.handlers import Call
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.routes import COMPUTE_ROUTES, ComputeRoute, docs_page, openapi_schema
from bert_jax.apps.serve.server_state import ServerState, Timings

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("bert_jax.apps.serve.access")

PAGE = Path(__file__).parent / "page"
_PAGE_FILES = frozenset(
    file.name for file in PAGE.iterdir() if file.suffix in (".html", ".css", ".js", ".svg")
)
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_encode = msgspec.json.Encoder().encode


def create_app(state: ServerState) -> Starlette:
    """Returns the application; `state.start()` compiles the first programs."""
    endpoints = Endpoints(state)
    main_route = _main_route(state)
    routes = [
        Route("/", endpoints.root, methods=["GET"]),
        Route("/", endpoints.compute(main_route), methods=["POST"]),
        Route("/health", endpoints.health),
        Route("/ping", endpoints.health),
        Route("/info", endpoints.info),
        Route("/metrics", endpoints.metrics),
        Route("/v1/models", endpoints.models),
        Route("/openapi.json", endpoints.openapi),
        Route("/docs", endpoints.docs),
        Route("/page/{name}", endpoints.page),
    ]
    for route in COMPUTE_ROUTES:
        routes.append(Route(route.path, endpoints.compute(route), methods=["POST"]))
    handlers_of_errors: dict[Any, Any] = {HTTPException: _http_error, Exception: _server_error}
    return Starlette(routes=routes, exception_handlers=handlers_of_errors)


def _main_route(state: ServerState) -> ComputeRoute:
    """Returns the route that POST / is short for: the first model's, as in TEI."""
    model = state.models.first
    is_reranker = model.task is not None and "rerank" in model.abilities
    ability = "rerank" if is_reranker else model.abilities[0]
    return next(route for route in COMPUTE_ROUTES if route.ability == ability)


class Endpoints:
    """Implements the endpoints of the application."""

    def __init__(self, state: ServerState):
        """Keeps the server and its key."""
        self._state = state
        key = state.config.api_key
        self._key = None if key is None else key.encode()
        self._openapi = openapi_schema()

    def compute(self, route: ComputeRoute) -> Callable[[Request], Awaitable[Response]]:
        """Returns the endpoint of a route that runs a model."""
        # One decoder for each route: msgspec compiles the type when the decoder is made.
        decoder = msgspec.json.Decoder(route.request_type)

        async def endpoint(request: Request) -> Response:
            timings = Timings(time.perf_counter())
            call = Call(
                self._state,
                request.headers.get("x-model"),
                request.headers.get("x-adapter"),
                timings,
            )
            method, metrics = "invalid", self._state.metrics
            try:
                self._require_key(request)
                self._state.require_ready()
                body = await self._read_body(request)
                message = _decode(decoder, body)
                with self._state.counted_request():
                    content = await _until_disconnected(request, route.handler(call, message))
                response = Response(_encode(content), media_type="application/json")
                response.headers.update(timings.headers())
                method = "batch" if call.is_batch else "single"
                metrics.successes.labels(method).inc()
            except RequestError as error:
                metrics.failures.labels(error.error_type).inc()
                response = _error_response(error, route)
            except Exception:
                logger.exception("%s failed", route.path)
                metrics.failures.labels("Backend").inc()
                error = RequestError("backend", "the request failed; the log has details")
                response = _error_response(error, route)
            metrics.requests.labels(method).inc()
            self._record(route, call, timings, response.status_code)
            return response

        return endpoint

    def _record(self, route: ComputeRoute, call: Call, timings: Timings, status: int) -> None:
        metrics, seconds = self._state.metrics, time.perf_counter() - timings.start
        metrics.durations["duration"].observe(seconds)
        metrics.durations["tokenization_duration"].observe(timings.tokenization)
        metrics.durations["queue_duration"].observe(timings.queue)
        metrics.durations["inference_duration"].observe(timings.inference)
        embeds = route.ability in ("embed", "embed_sparse", "multi_vector", "embed_heads")
        kind = "embed" if embeds else "predict"
        metrics.inputs[kind].inc(call.num_inputs)
        if status == 200:
            metrics.input_successes[kind].inc(call.num_inputs)
        record = {
            "event": "request",
            "path": route.path,
            "status": status,
            "inputs": call.num_inputs,
            "tokens": timings.num_tokens,
            "truncated": timings.num_truncated,
            "total_ms": round(seconds * 1000, 3),
            "queue_ms": round(timings.queue * 1000, 3),
            "inference_ms": round(timings.inference * 1000, 3),
        }
        access_logger.info("%s", json.dumps(record))

    def _require_key(self, request: Request) -> None:
        if self._key is None:
            return
        scheme, _, found = request.headers.get("authorization", "").partition(" ")
        # The name of the scheme may be written in any case (RFC 9110, section 11.1).
        is_bearer = scheme.lower() == "bearer"
        # In constant time, so that the key cannot be guessed character by character; HTTP headers
        # are Latin-1.
        if not (hmac.compare_digest(found.encode("latin-1"), self._key) and is_bearer):
            message = "the API key is missing or wrong; expected the header Authorization: Bearer"
            raise RequestError("key", message, headers={"WWW-Authenticate": "Bearer"})

    async def _read_body(self, request: Request) -> bytes:
        """Reads the body of a request.

        Raises:
          RequestError: it is too long, or takes too long to arrive.
        """
        limit, seconds = self._state.config.max_body_bytes, self._state.config.read_seconds
        message = f"the request is larger than {limit:,} bytes; send it in several requests"
        too_large = RequestError("too_large", message)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        # Content-Length may be missing or wrong, so the bytes that arrive are counted, too.
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            message = f"the request did not arrive within {seconds:g} seconds"
            raise RequestError("timeout", message) from None
        except ClientDisconnect:
            raise RequestError("client_gone", "the client has disconnected") from None
        return bytes(body)

    async def root(self, request: Request) -> Response:
        """Answers with the page for a browser, and with the health otherwise."""
        if "text/html" in request.headers.get("accept", ""):
            return self._page_file("index.html")
        return await self.health(request)

    async def health(self, request: Request) -> Response:
        """Answers 200 with the number of programs if the server is ready, and 503 otherwise."""
        try:
            self._state.require_ready()
        except RequestError as error:
            return _error_response(error, None)
        return JSONResponse({"status": "ready", "programs": self._state.programs()})

    async def info(self, request: Request) -> Response:
        """Answers with what /info of TEI has; `?model=` chooses the model."""
        return self._json(
            request, lambda: handlers.info(self._state, request.query_params.get("model"))
        )

    async def models(self, request: Request) -> Response:
        """Answers with the models in OpenAI's shape."""
        return self._json(request, lambda: handlers.list_models(self._state))

    async def metrics(self, request: Request) -> Response:
        """Answers with the metrics in Prometheus' text format."""
        self._state.metrics.queued_tokens.set(self._state.batcher.queued_tokens)
        text = self._state.metrics.to_text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        """Answers with the OpenAPI schema of all routes."""
        return JSONResponse(self._openapi)

    async def docs(self, request: Request) -> Response:
        """Answers with a page about all routes, which needs no network."""
        return HTMLResponse(docs_page(self._openapi), headers=_PAGE_HEADERS)

    async def page(self, request: Request) -> Response:
        """Answers with a file of the page."""
        return self._page_file(request.path_params["name"])

    def _page_file(self, name: str) -> Response:
        # A list of names instead of a folder: no path of a request can leave it.
        if name not in _PAGE_FILES:
            raise HTTPException(404, f"there is no file {name!r} of the page")
        return FileResponse(PAGE / name, headers=_PAGE_HEADERS)

    def _json(self, request: Request, content: Callable[[], Any]) -> Response:
        try:
            self._require_key(request)
            return JSONResponse(content())
        except RequestError as error:
            return _error_response(error, None, request.url.path)


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RequestError("validation", f"the request does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("validation", f"the request is not JSON: {error}") from None


async def _until_disconnected(request: Request, handler: Awaitable[Any]) -> Any:
    """Awaits a handler; cancels it if the client disconnects before.

    Raises:
      RequestError: the client has disconnected.
    """
    task = asyncio.ensure_future(handler)
    # Starlette does not cancel a handler when its client goes away, so the connection is watched
    # beside it.
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestError("client_gone", "the client has disconnected")
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()


async def _disconnected(request: Request) -> None:
    """Returns when the client disconnects; its whole body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error_response(
    error: RequestError, route: ComputeRoute | None, path: str | None = None
) -> Response:
    is_openai = (route.path if route else path or "").startswith("/v1")
    style = "openai" if is_openai else "tei"
    return JSONResponse(error.to_json(style), error.status(style), headers=error.headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Answers for a path or a method that does not exist."""
    kind = "method" if error.status_code == 405 else "not_found"
    message = f"{request.method} {request.url.path}: {error.detail}; /docs lists the routes"
    # A 405 has the header Allow.
    found = RequestError(kind, message, headers=dict(error.headers or {}))
    return _error_response(found, None, request.url.path)


async def _server_error(request: Request, error: Exception) -> Response:
    return _error_response(
        RequestError("internal", "the request failed; the log of the server has details"),
        None,
        request.url.path,
    )
