"""Covers tpu/worker/storage.py and tpu/worker/settings.py without a bucket."""

import pytest

from bert_jax.errors import ConfigError
from tpu.worker import settings, storage


@pytest.mark.parametrize(
    "found, message", [(None, "the object does not exist"), ("x", "contains 'x'")]
)
def test_access_check_reports_an_object_that_changed(monkeypatch, found, message):
    removed = []
    monkeypatch.setattr(storage, "write", lambda url, text: None)
    monkeypatch.setattr(storage, "read", lambda url: found)
    monkeypatch.setattr(storage, "remove", removed.append)
    with pytest.raises(storage.StorageError, match=message) as error:
        storage.check_access("gs://b/probe")
    assert removed == ["gs://b/probe"]
    assert "stop other programs" in str(error.value.fix) and not error.value.permanent


@pytest.mark.parametrize("name, unit", [("MIN_DISK_GB", "gigabytes"), ("HEARTBEAT", "seconds")])
def test_setting_that_is_no_number_is_refused(monkeypatch, name, unit):
    monkeypatch.setenv(f"BERT_TPU_{name}", "much")
    with pytest.raises(ConfigError, match=f"BERT_TPU_{name} is 'much'; expected .* of {unit}"):
        settings.from_environment()
