"""Translates the files of runs that were launched with layout version 1.

The hosts of such a run execute the code of its bundle, which looks for `order.json` with the old
keys. The run therefore keeps its version: its manifest says 1, its objects keep their old names
(see `RunFolder.layout_version`), and its job spec is written with the old keys.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bert_jax.errors import UserError
from tpu import strict_json
from tpu.protocol import VERSION, JobSpec

_MODES = {"lanes": "shards"}
_MANIFEST_KEYS = {"requires": "required_versions"}
_JOB_SPEC_KEYS = {
    "incarnation": "attempt",
    "hosts": "host_addresses",
    "requires": "required_versions",
}
_LOOP_STATE_KEYS = {
    "clock": "wall_time",
    "now": "loop_time",
    "incarnation": "attempt",
    "exit_at": "first_exit_at",
    "unwell_at": "degraded_since",
    "beats": "heartbeats",
    "beats_since": "heartbeat_times",
    "blind_since": "unreachable_since",
    "billed": "billed_seconds",
    "billing": "is_billed",
    "step_before": "step_at_start",
    "failures": "attempts_without_progress",
    "tries": "start_tries",
    "refusals": "creation_failures",
    "stopping_at": "stopping_since",
    "blocked": "blocked_until",
    "outcome": "exit_code",
}
_LOOP_PHASES = {"down": "idle", "asked": "requested", "leaving": "draining"}


def upgrade_manifest(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON object of a manifest with today's keys; its `version` stays 1."""
    return _upgrade_mode(_rename_keys(data, _MANIFEST_KEYS))


def upgrade_loop_state(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON object of a loop state with today's keys and phases."""
    renamed = _rename_keys(data, _LOOP_STATE_KEYS)
    phase = renamed.get("phase")
    return {**renamed, "phase": _LOOP_PHASES.get(str(phase), phase)}


def parse_job_spec(text: str, source: str) -> JobSpec:
    """Parses a job spec with the old keys (`order.json`).

    Raises:
      UserError: the text is not a job spec of version 1.
    """
    try:
        data = _upgrade_mode(_rename_keys(json.loads(text), _JOB_SPEC_KEYS))
    except (ValueError, AttributeError):
        raise UserError(f"{source} is not a JSON object") from None
    return strict_json.from_text(JobSpec, json.dumps({**data, "version": VERSION}), source)


def format_job_spec(spec: JobSpec) -> str:
    """Returns a job spec as JSON text with the old keys."""
    old_keys = {new: old for old, new in _JOB_SPEC_KEYS.items()}
    data = _rename_keys({**asdict(spec), "version": 1}, old_keys)
    if data["mode"] == "shards":
        data["mode"] = "lanes"
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _upgrade_mode(data: dict[str, Any]) -> dict[str, Any]:
    mode = data.get("mode")
    return {**data, "mode": _MODES.get(str(mode), mode)}


def _rename_keys(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in data.items()}
