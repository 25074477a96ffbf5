"""Defines the errors that a request can get, and their JSON in the two styles of the routes.

Routes of text-embeddings-inference (TEI) answer {"error", "error_type"}; routes under /v1 answer
{"error": {"message", "type", "param", "code"}}, as OpenAI does.
"""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

ErrorStyle = Literal["tei", "openai"]


@dataclass(frozen=True)
class _Kind:
    """Holds the HTTP status of an error, TEI's `error_type`, and OpenAI's `type` and `code`."""

    status: int
    error_type: str
    openai_type: str = "invalid_request_error"
    code: str | None = None
    openai_status: int | None = None  # None: the same as `status`


_KINDS = {
    "validation": _Kind(422, "Validation", openai_status=400),
    "tokenizer": _Kind(422, "Tokenizer", openai_status=400),
    "empty": _Kind(400, "Empty"),
    "model": _Kind(422, "Validation", code="model_not_found", openai_status=404),
    "key": _Kind(401, "Unauthorized", code="invalid_api_key"),
    "not_found": _Kind(404, "NotFound"),
    "method": _Kind(405, "MethodNotAllowed"),
    "timeout": _Kind(408, "Timeout"),
    "too_large": _Kind(413, "Validation", code="request_too_large"),
    "overloaded": _Kind(429, "Overloaded", "rate_limit_error", "overloaded"),
    "backend": _Kind(424, "Backend", "server_error", "backend_failed"),
    "internal": _Kind(500, "Backend", "server_error", "internal_error"),
    "unhealthy": _Kind(503, "Unhealthy", "server_error", "not_ready"),
    "client_gone": _Kind(499, "Cancelled"),
}

ErrorKind = Literal[
    "validation",
    "tokenizer",
    "empty",
    "model",
    "key",
    "not_found",
    "method",
    "timeout",
    "too_large",
    "overloaded",
    "backend",
    "internal",
    "unhealthy",
    "client_gone",
]


@dataclass
class RequestError(Exception):
    """Reports why a request is refused or has failed; the message is sent to the client.

    Attributes:
      kind: what went wrong, from which the status follows.
      message: what was found and what was expected.
      param: the field of the request with the mistake, for OpenAI's routes.
      headers: headers of the response, such as Retry-After.
    """

    kind: ErrorKind
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def error_type(self) -> str:
        """Returns TEI's name of the error, which metrics count."""
        return _KINDS[self.kind].error_type

    def status(self, style: ErrorStyle) -> int:
        """Returns the HTTP status of the response."""
        kind = _KINDS[self.kind]
        if style == "openai" and kind.openai_status is not None:
            return kind.openai_status
        return HTTPStatus(kind.status) if kind.status != 499 else 499

    def to_json(self, style: ErrorStyle) -> dict[str, Any]:
        """Returns the body of the response."""
        kind = _KINDS[self.kind]
        if style == "tei":
            return {"error": self.message, "error_type": kind.error_type}
        error = {"message": self.message, "type": kind.openai_type, "param": self.param}
        return {"error": {**error, "code": kind.code}}
