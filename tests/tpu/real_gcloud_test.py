"""Tests that the real gcloud parses every golden command of tpu/launcher/, without a network.

The API is a server on this machine that refuses everything, so what is tested is that gcloud knows
the command and its flags. Skips where there is no Google Cloud CLI.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

GOLDENS = Path(__file__).parent / "goldens"
UNKNOWN = re.compile(r"unrecognized arguments|Invalid choice|Invalid value|argument -|Must be spec")
# Not in SDK 528; generally available since 2026-06 (Google's release notes). `doctor` checks it.
NEWER = ("--target-size-policy-mode=bulk",)


class Refuses(BaseHTTPRequestHandler):
    """Serves an API that rejects every request."""

    def _no(self) -> None:
        body = json.dumps({"error": {"code": 400, "message": "NO", "status": "INVALID_ARGUMENT"}})
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _no

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    found = {
        **os.environ,
        "CLOUDSDK_CONFIG": str(tmp_path / "config"),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
    }
    for api in ("tpu", "compute", "storage", "serviceusage", "cloudquotas", "iam", "secretmanager"):
        path = "compute/v1/" if api == "compute" else "storage/v1/" if api == "storage" else ""
        found[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}"] = url + path
    yield found
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_real_gcloud_parses_every_command(environment: dict[str, str], tmp_path: Path):
    program = shutil.which("gcloud")
    if program is None or "tests/helpers/tpu/bin" in program:
        pytest.skip("no Google Cloud CLI: flags were NOT checked by the real parser")
    (tmp_path / "CODE.tar.gz").write_text("x")
    lines = sorted(shapes())
    assert len(lines) > 25

    def wrong(line: str) -> str | None:
        words = [word for word in shlex.split(line)[1:] if word not in NEWER]
        done = subprocess.run(
            [program, *words], env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return f"{line}\n  {done.stderr[:400]}" if UNKNOWN.search(done.stderr) else None

    with ThreadPoolExecutor(2) as pool:
        found = [each for each in pool.map(wrong, lines) if each]
    assert not found, "\n".join(found)


def shapes() -> set[str]:
    """Returns one command of each kind, compared without the values of flags."""
    kinds: dict[tuple[str, ...], str] = {}
    for file in sorted(GOLDENS.glob("*.txt")):
        for line in file.read_text().splitlines():
            if line.startswith("gcloud "):
                words = shlex.split(line)
                names = [w.split("=")[0] for w in words if w.startswith("--")]
                kinds.setdefault((*words[:5], *names), line)
    return set(kinds.values())
