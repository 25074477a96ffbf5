"""Tests hooks: when they are called, what they write, and when they stop a run."""

import io
import json

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.runs import hooks
from bert_jax.runs.hooks import (
    LimitInFlightSteps,
    SpikeGuard,
    StepEvent,
    Throughput,
    TrainingHalted,
)
from bert_jax.runs.metrics import MetricsLog, read_metrics
from bert_jax.runs.progress import ProgressLine, format_duration


class Never:
    """A metric that must not be fetched."""

    def __float__(self):
        raise AssertionError("fetched although no hook asked for it")


class Recorder:
    def __init__(self, every):
        self.every, self.steps = every, []

    def __call__(self, event):
        self.steps.append(event.step)

    def close(self):
        pass


class Pending:
    """A metric of a step that the device has not computed yet; records when it is waited for."""

    def __init__(self, step, waited):
        self.step, self.waited = step, waited

    def block_until_ready(self):
        self.waited.append(self.step)
        return self


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_event(step, metrics=None, **changes):
    values = {
        "total_steps": 100,
        "phase": "length-128",
        "position": 8 * (step - 1),
        "batch_size": 8,
        "tokens": 8 * 128 * step,
        "clock": lambda: 0.5 * step,
        "flops": 1e9 * step,
        "device_metrics": metrics or {"loss": jnp.float32(2.5), "mlm_accuracy": jnp.float32(0.25)},
    }
    return StepEvent(step=step, **{**values, **changes})


def test_hooks_are_called_every_n_steps_and_after_the_last():
    tens, fours = Recorder(10), Recorder(4)
    for step in range(1, 19):
        hooks.call_hooks([tens, fours], make_event(step, total_steps=18))
    assert tens.steps == [10, 18] and fours.steps == [4, 8, 12, 16, 18]


def test_metrics_are_fetched_once_and_only_if_used():
    hooks.call_hooks([Recorder(1)], make_event(1, {"loss": Never()}))
    event = make_event(1)
    assert event.metrics == {"loss": 2.5, "mlm_accuracy": 0.25}
    assert event.metrics is event.metrics


def test_throughput_is_tokens_per_second_between_events():
    rates = Throughput(peak_flops=1e11)
    assert rates.measure(make_event(10)) == {}
    measured = rates.measure(make_event(30))
    assert measured["steps_per_second"] == pytest.approx(2)
    assert measured["tokens_per_second"] == pytest.approx(2 * 1024)
    assert measured["mfu"] == pytest.approx(2 * 1e9 / 1e11)
    assert "mfu" not in _two(Throughput())


def _two(rates):
    rates.measure(make_event(1))
    return rates.measure(make_event(2))


def test_progress_in_a_terminal_is_one_rewritten_line():
    stream = Terminal()
    line = ProgressLine(log_every=1, peak_flops=1e11, stream=stream)
    for step in (1, 2):
        line(make_event(step))
    line.close()
    text = stream.getvalue()
    assert text.count("\n") == 1
    shown = text.split("\r")[-1]
    assert "length-128 2/100 | loss 2.5000 | mlm acc 25.0% | 2,048 tokens/s" in shown


def test_remaining_time_is_steps_over_measured_rate():
    stream = io.StringIO()
    line = ProgressLine(log_every=1, interval=0, stream=stream)
    line(make_event(1))
    line(make_event(2))
    assert "left" not in stream.getvalue().splitlines()[0]
    assert stream.getvalue().splitlines()[1].endswith("49s left")


def test_progress_is_shown_after_ten_seconds_without_an_update():
    stream, now = io.StringIO(), [0.0]
    line = ProgressLine(log_every=50, interval=0, stream=stream, clock=lambda: now[0])
    for step, now[0] in ((1, 0.0), (2, 4.0), (3, 9.9), (4, 10.1), (5, 20.0), (50, 21.0)):
        line(make_event(step))
    shown = [text.split(" | ")[0] for text in stream.getvalue().splitlines()]
    assert shown == ["length-128 1/100", "length-128 4/100", "length-128 50/100"]


def test_rates_are_those_of_steps_that_the_device_has_finished():
    """The device takes 3 s a step, and eight steps are dispatched before it has finished them."""
    stream, now = io.StringIO(), [0.0]

    class Loss:
        def __init__(self, step):
            self.step = step

        def block_until_ready(self):
            now[0] = max(now[0], 3.0 * self.step)
            return self

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.block_until_ready().step, dtype)

    limit = LimitInFlightSteps()
    line = ProgressLine(log_every=50, interval=0, stream=stream, clock=lambda: now[0])
    for step in range(1, 101):
        event = make_event(step, {"loss": Loss(step)}, clock=lambda: now[0])
        hooks.call_hooks([limit, line], event)
    first, *shown = stream.getvalue().splitlines()
    assert first == "length-128 1/100 | loss 1.0000" and len(shown) > 3
    for text in shown:
        step = int(text.split()[1].partition("/")[0])
        assert f"| 341 tokens/s | {format_duration(3.0 * (100 - step))} left" in text


def test_remaining_time_includes_evaluations_and_saves():
    stream = io.StringIO()
    line = ProgressLine(
        log_every=1, interval=0, stream=stream, pauses_left=lambda step: 10.0 * (100 - step)
    )
    line(make_event(1))
    line(make_event(2))
    assert stream.getvalue().splitlines()[1].endswith("17m 09s left")  # 98 x (0.5 s + 10 s)


def test_progress_without_a_terminal_is_occasional_lines():
    stream, now = io.StringIO(), [0.0]
    line = ProgressLine(log_every=1, interval=30, stream=stream, clock=lambda: now[0])
    for step, now[0] in ((1, 0.0), (2, 10.0), (3, 31.0), (100, 40.0)):
        line(make_event(step))
    line.close()
    lines = stream.getvalue().splitlines()
    assert [text.split(" | ")[0] for text in lines] == [
        "length-128 1/100",
        "length-128 3/100",
        "length-128 100/100",
    ]


def test_progress_that_cannot_be_written_does_not_end_a_run():
    full_disk = open("/dev/full", "w")  # noqa: SIM115 (closed below)
    line = ProgressLine(log_every=1, interval=0, stream=full_disk)
    for step in (1, 2, 100):
        line(make_event(step))
    line.close()
    with pytest.raises(OSError, match="No space left"):  # the lines are still in its buffer
        full_disk.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.6, "1m 00s"), (185, "3m 05s"), (7620, "2h 07m"), (356400, "4d 03h")],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


def test_metrics_are_flushed_and_nan_is_null(tmp_path):
    log = MetricsLog(tmp_path, every=1)
    log(make_event(1))
    log(make_event(2, {"loss": jnp.float32(np.nan)}))
    log.write_evaluation(2, {"mlm_loss": 1.5}, phase="length-128")
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    log.close()
    assert rows[0] == {
        "split": "train",
        "step": 1,
        "phase": "length-128",
        "seconds": 0.5,
        "loss": 2.5,
        "mlm_accuracy": 0.25,
    }
    assert rows[1]["loss"] is None and rows[1]["tokens_per_second"] == pytest.approx(2048)
    expected = {"split": "evaluation", "step": 2, "phase": "length-128", "mlm_loss": 1.5}
    assert rows[2] == expected


def test_resumed_log_drops_repeated_steps_and_partial_lines(tmp_path):
    log = MetricsLog(tmp_path, every=1)
    for step in range(1, 8):
        log(make_event(step))
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"split": "train", "st')
    log = MetricsLog(tmp_path, every=1, resume_step=5)
    log(make_event(6))
    log.close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_invalid_line_of_metrics_is_named(tmp_path):
    row = {"split": "train", "step": 1, "phase": "a", "loss": 2.0}
    nested = "[" * 10**5
    for line in ("[1]", json.dumps(row | {"loss": "low"}), json.dumps(row | {"phase": 3}), nested):
        (tmp_path / "metrics.jsonl").write_text(f"{line}\n{{}}\n")
        with pytest.raises(UserError, match=r"metrics\.jsonl, line 1"):
            MetricsLog(tmp_path, every=1)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl is not a file"):
        MetricsLog(tmp_path, every=1)


def guard(last_good=lambda: 40, **options):
    return SpikeGuard(every=1, last_good_step=last_good, **options)


def look(guard, step, loss):
    guard(make_event(step, {"loss": jnp.float32(loss)}))


@pytest.mark.parametrize("loss", [np.nan, np.inf, -np.inf])
def test_non_finite_loss_stops_and_names_examples_and_checkpoint(loss):
    watch = guard()
    look(watch, 50, 2.0)
    with pytest.raises(TrainingHalted) as caught:
        look(watch, 60, loss)
    message = str(caught.value)
    assert "at step 60 (examples 472 to 479)" in message
    assert "last normal loss was at step 50 (examples up to 399)" in message
    assert "last valid checkpoint is step 40" in message
    with pytest.raises(TrainingHalted, match="no checkpoint was saved yet"):
        look(guard(last_good=lambda: None), 1, loss)


def test_only_a_long_loss_spike_stops_the_run():
    watch = guard(factor=2.0, patience=3)
    for step, loss in enumerate([*[3.0, 2.8] * 24, 9.0, 9.0, 2.9, 9.0, 9.0], 1):
        look(watch, step, loss)
    with pytest.raises(
        TrainingHalted, match=r"above 2 times its running mean 3\.1\d+ in 3 consecutive"
    ):
        look(watch, 54, 9.0)


def test_losses_near_zero_may_vary():
    watch = guard()
    for step, loss in enumerate([*[1e-5] * 50, *[0.4] * 10, *[1e-5] * 50], 1):
        look(watch, step, loss)
    for step in range(111, 115):
        look(watch, step, 0.6)
    with pytest.raises(TrainingHalted, match="above 2 times its running mean"):
        look(watch, 115, 0.6)


def test_a_low_first_loss_is_not_the_usual_one():
    # The losses of a sentence encoder on pairs of questions, which it has learned before.
    losses = [0.006, 0.480, 0.677, 0.046, 0.216, 0.909, 0.609, 0.649, 0.617, 0.813, 0.7, 0.9]
    watch = guard()
    for step, loss in enumerate(losses * 2, 1):
        look(watch, step, loss)
    with pytest.raises(TrainingHalted, match=r"running mean 0\.55\d+ in 5 consecutive"):
        for step in range(25, 30):
            look(watch, step, 3.0)


def test_one_outlier_does_not_hide_a_divergence():
    watch = guard()
    for step, loss in enumerate([*[2.0] * 5, 1e6, *[2.0] * 5], 1):
        look(watch, step, loss)
    with pytest.raises(TrainingHalted, match="above 2 times its running mean"):
        for step in range(12, 17):
            look(watch, step, 6.0)


def test_noisy_falling_loss_does_not_stop_the_run():
    watch, noise = guard(), np.random.default_rng(0)
    for step in range(1, 500):
        look(watch, step, (8 * 0.99**step + 2) * noise.uniform(0.8, 1.2))


def mixture_of_tasks(num_steps, scale=1.0):
    """Yields metrics of batches of 8 examples; six batches of 66 have a second task as well."""
    rng = np.random.default_rng(0)
    for step in range(num_steps):
        is_first = np.full(8, True) if step % 66 < 60 else rng.random(8) < 0.3
        # A cross-entropy, and the squared error of numbers from 0 to 5.
        losses = scale * np.where(is_first, rng.uniform(0.1, 1.0, 8), rng.uniform(2.0, 10.0, 8))
        metrics = {"loss": losses.mean()}
        for task, members in (("rte", is_first), ("stsb", ~is_first)):
            metrics[f"{task}/example_fraction"] = members.mean()
            metrics[f"{task}/loss"] = losses[members].mean() if members.any() else np.nan
        yield {name: jnp.float32(value) for name, value in metrics.items()}


def test_batches_of_tasks_with_other_losses_do_not_stop_the_run():
    # The total loss alone depends on how many examples of each task are in a batch.
    watch = guard()
    with pytest.raises(TrainingHalted, match="in 5 consecutive checks"):
        for step, metrics in enumerate(mixture_of_tasks(400), 1):
            watch(make_event(step, {"loss": metrics["loss"]}))
    watch = guard()
    for step, metrics in enumerate(mixture_of_tasks(400), 1):
        watch(make_event(step, metrics))


@pytest.mark.parametrize("scale", [4.0, 100.0])
def test_a_spike_of_a_multi_task_run_stops_it(scale):
    watch = guard()
    for step, metrics in enumerate(mixture_of_tasks(132), 1):
        watch(make_event(step, metrics))
    with pytest.raises(TrainingHalted, match="above 2 times its running mean"):
        for step, metrics in enumerate(mixture_of_tasks(20, scale), 133):
            watch(make_event(step, metrics))


def test_number_of_steps_in_flight_is_limited():
    waited: list[int] = []
    pace = LimitInFlightSteps(max_steps=3)
    for step in range(1, 8):
        pace(make_event(step, {"loss": Pending(step, waited)}))
    assert waited == [1, 2, 3, 4]
