"""Serves the metadata of several hosts, each below its own path."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MetadataServer:
    """Holds values by host and key; `skew`: seconds that its clock is ahead."""

    def __init__(self, url: str):
        self._url = url
        self.values: dict[str, str] = {}
        self.skew = 0.0

    def url(self, host: int) -> str:
        """Returns the value of a host's BERT_TPU_METADATA."""
        return f"{self._url}/{host}"

    def set(self, host: int, key: str, value: str) -> None:
        """Sets the value of a host's key instance/..."""
        self.values[f"/{host}/computeMetadata/v1/{key}"] = value


@contextmanager
def serving() -> Generator[MetadataServer]:
    """Runs a server on a free port until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            value = served.values.get(self.path)
            flavour = self.headers.get("Metadata-Flavor") == "Google"
            self.send_response(200 if value is not None and flavour else 404)
            self.end_headers()
            if value is not None and flavour:
                self.wfile.write(value.encode())

        do_HEAD = do_GET

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + served.skew, usegmt=True)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = MetadataServer(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield served
        finally:
            server.shutdown()
