"""Tests slices that fail after their request was accepted.

Covers tpu/launcher/restarts/transitions.py and tpu/launcher/cloud/error_catalog.py.
"""

import pytest

from tests.helpers.tpu.cloud import SLICE
from tests.tpu.scenario_test import QUOTA, STOCKOUT, ZONES, launch, requested_zones

DENIED = "Permission 'tpu.nodes.create' denied: sa@p does not have permission to create it."


def test_late_quota_error_ends_the_launch(cloud, trainers, capsys):
    cloud.script(slices={"*": {"queue": "FAILED", "error": QUOTA}})
    assert launch() == 78
    output = capsys.readouterr().err
    assert "queued resource FAILED, RESOURCE_EXHAUSTED: Quota limit" in output
    assert (
        "IAM & Admin > Quotas" in output and len(requested_zones(cloud)) == 1 and not cloud.slices()
    )


def test_quota_error_in_one_zone_tries_the_others(cloud, trainers):
    cloud.script(slices={f"{SLICE}-0": {"queue": "FAILED", "error": QUOTA}})
    assert launch(*ZONES) == 0
    assert requested_zones(cloud) == ["us-central1-b", "us-central1-a"]


def test_late_permission_error_ends_the_launch(cloud, trainers, capsys):
    cloud.script(slices={"*": {"queue": "FAILED", "error": DENIED}})
    assert launch(*ZONES) == 78
    assert (
        "does not have permission" in capsys.readouterr().err and len(requested_zones(cloud)) == 1
    )


@pytest.mark.parametrize("error", [STOCKOUT, "something new"])
def test_late_transient_errors_are_retried(cloud, trainers, capsys, error):
    cloud.script(slices={f"{SLICE}-0": {"queue": "FAILED", "error": error}})
    assert launch() == 0 and len(requested_zones(cloud)) == 2
    assert error in capsys.readouterr().err
