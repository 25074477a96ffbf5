"""Defines the limits of a server: batch and queue sizes, request sizes, timeouts."""

from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.errors import ConfigError

WarmUp = Literal["none", "common", "all"]

_MIN_LENGTH = 4
"""Least number of tokens of a sequence: a pair of empty texts has three special tokens or four."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Holds the settings of a server.

    Attributes:
      max_batch_tokens: maximum number of tokens of a batch, padding included.
      max_batch_rows: maximum number of sequences of a batch.
      max_queue_tokens: maximum number of tokens that wait for the device; a request that exceeds
        it gets status 429.
      max_concurrent_requests: maximum number of requests that are tokenized, wait or are computed;
        further ones get status 429.
      max_inputs: maximum number of texts in a request. Longer requests get status 422.
      max_body_bytes: maximum number of bytes of a request. Longer requests get status 413.
      max_length: maximum number of tokens of a sequence; None: as in each model.
      read_seconds: how long a client may take to send a request, before it gets status 408.
      shutdown_seconds: how long accepted requests may take after SIGTERM.
      tokenizer_threads: number of threads that tokenize texts and decode outputs.
      warm_up: which programs are compiled before the first request is answered: "all"; "common",
        one for each model and kind of request, which sequences of up to 128 tokens fit, and the
        others in the background; or "none", so that the first requests wait for theirs.
      api_key: the bearer token that requests must have; None for none.
    """

    max_batch_tokens: int = 4096
    max_batch_rows: int = 64
    max_queue_tokens: int = 262_144
    max_concurrent_requests: int = 512
    max_inputs: int = 2048
    max_body_bytes: int = 2_000_000
    max_length: int | None = None
    read_seconds: float = 30.0
    shutdown_seconds: float = 30.0
    tokenizer_threads: int = 2
    warm_up: WarmUp = "common"
    api_key: str | None = None

    def __post_init__(self) -> None:
        if self.warm_up not in (choices := get_args(WarmUp)):
            raise ConfigError(f"warm_up is {self.warm_up!r}; expected one of {', '.join(choices)}")
        sizes = ("max_batch_tokens", "max_batch_rows", "max_queue_tokens", "max_inputs")
        others = ("max_concurrent_requests", "max_body_bytes", "tokenizer_threads")
        for name in (*sizes, *others):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.max_length is not None and self.max_length < _MIN_LENGTH:
            raise ConfigError(
                f"max_length is {self.max_length}; expected at least {_MIN_LENGTH}, since special "
                "tokens count"
            )
        if self.max_queue_tokens < self.max_batch_tokens:
            raise ConfigError(
                f"max_queue_tokens is {self.max_queue_tokens:,}; expected at least "
                f"max_batch_tokens, {self.max_batch_tokens:,}"
            )
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the API key is empty; expected the token that requests must send")
