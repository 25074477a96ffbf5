"""Tests that the real gcloud parses every command of the launcher, without a network.

The API is a server on this machine that refuses everything, so what is tested is that gcloud knows
the command and its flags. Skips where there is no Google Cloud CLI. Covers tpu/queued_resource.py.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.helpers.tpu.cloud import DATA, LAUNCH, WORK, Trainers, tpuctl

UNKNOWN = re.compile(r"unrecognized arguments|Invalid choice|Invalid value|argument -|Must be spec")
ACCOUNT = ("--service-account", "a@p.iam.gserviceaccount.com")


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
    yield {
        **os.environ,
        "CLOUDSDK_CONFIG": str(tmp_path / "config"),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": url,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{url}storage/v1/",
    }
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_real_gcloud_parses_every_command(
    environment: dict[str, str], trainers: Trainers, capsys: pytest.CaptureFixture[str]
):
    programs = environment["PATH"].split(os.pathsep)
    path = os.pathsep.join(each for each in programs if "tests/helpers/tpu" not in each)
    program = shutil.which("gcloud", path=path)
    if program is None:
        pytest.skip("no Google Cloud CLI: flags were NOT checked by the real parser")
    for flags in ((*ACCOUNT, "--internal-ips"), ("--capacity", "reserved", "--iap")):
        assert tpuctl("launch", *LAUNCH, *flags, "--dry-run", *DATA, *WORK) == 0
    wrong = []
    for line in dict.fromkeys(capsys.readouterr().out.splitlines()):
        done = subprocess.run(
            [program, *shlex.split(line)[1:]], env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if UNKNOWN.search(done.stderr):
            wrong.append(f"{line}\n  {done.stderr[:400]}")
    assert not wrong, "\n".join(wrong)
