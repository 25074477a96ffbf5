"""The metadata server of a machine in the cloud: who am I, and am I about to be taken away."""

import contextlib
import urllib.error
import urllib.request

_SECONDS = 5.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
NETWORK_ADDRESS = "instance/network-interfaces/0/ip"
WORKER_NUMBER = "instance/attributes/agent-worker-number"
PREEMPTED = "instance/preempted"
MAINTENANCE = "instance/maintenance-event"


def get(server: str, key: str) -> str | None:
    """A value; None if the server has none or does not answer."""
    request = urllib.request.Request(
        f"{server}/computeMetadata/v1/{key}", headers={"Metadata-Flavor": "Google"}
    )
    with contextlib.suppress(OSError, ValueError):
        with _OPENER.open(request, timeout=_SECONDS) as answer:
            return answer.read().decode("utf-8").strip()
    return None


def date(server: str) -> str | None:
    """The Date that a web server's answer carries; None if it does not answer."""
    request = urllib.request.Request(server, method="HEAD")
    try:
        with _OPENER.open(request, timeout=_SECONDS) as answer:
            return answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        return error.headers.get("Date")
    except (OSError, ValueError):
        return None
