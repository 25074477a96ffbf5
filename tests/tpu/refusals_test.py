"""A slice that is refused after it was accepted: the reason stands in the queued resource."""

import pytest

from tests.tpu.cloud import SLICE
from tests.tpu.scenario_test import QUOTA, STOCKOUT, ZONES, asked, launch

DENIED = "Permission 'tpu.nodes.create' denied: sa@p does not have permission to create it."


def test_quota_that_is_missed_late_ends_the_launch(cloud, trainers, capsys):
    cloud.script(slices={"*": {"queue": "FAILED", "error": QUOTA}})
    assert launch() == 78
    said = capsys.readouterr().err
    assert "queued resource FAILED, RESOURCE_EXHAUSTED: Quota limit" in said
    assert "IAM & Admin > Quotas" in said and len(asked(cloud)) == 1 and not cloud.slices()


def test_quota_that_one_zone_lacks_leaves_the_others(cloud, trainers):
    cloud.script(slices={f"{SLICE}-0": {"queue": "FAILED", "error": QUOTA}})
    assert launch(*ZONES) == 0
    assert asked(cloud) == ["us-central1-b", "us-central1-a"]


def test_a_missing_permission_is_the_same_everywhere(cloud, trainers, capsys):
    cloud.script(slices={"*": {"queue": "FAILED", "error": DENIED}})
    assert launch(*ZONES) == 78
    assert "does not have permission" in capsys.readouterr().err and len(asked(cloud)) == 1


@pytest.mark.parametrize("error", [STOCKOUT, "something new"])
def test_what_may_pass_is_asked_for_again(cloud, trainers, capsys, error):
    cloud.script(slices={f"{SLICE}-0": {"queue": "FAILED", "error": error}})
    assert launch() == 0 and len(asked(cloud)) == 2
    assert error in capsys.readouterr().err
