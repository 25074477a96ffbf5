"""Runs a small experiment that is killed, stopped or hung at a given step.

    python training_driver.py CORPUS RUN [--recipe NAME] [--steps 40] [--kill-at 17]
                              [--kill-in-save 20] [--term-at 11] [--term-in-save 20]
                              [--hang-at 5] [--set FIELD=VALUE ...]

`--set` changes fields of the run. With `--recipe`, CORPUS is the folder of `prepare_recipes`, and
the run that of a small recipe. `--kill-at N` is SIGKILL after update N, `--kill-in-save N` SIGKILL
while the checkpoint of step N is half written, `--term-at N` SIGTERM after update N, `--term-in-
save N` SIGTERM while the checkpoint of step N is half written, `--hang-at N` makes the last process
hang after update N. The examples of every batch that this process gets are appended to
RUN/rows-<processes>-<process>.txt, one line per step.
"""

import argparse
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.errors import UserError


def experiment(corpus: str, steps: int) -> Experiment:
    """Returns a run in two phases of a BERT of width 16, with a checkpoint every 10 steps."""
    return tiny_experiment(
        "accidents",
        corpus,
        two_length_phases(steps),
        num_hidden_layers=2,
        save_every=10,
        warmup_steps=4,
    )


def main() -> int:
    """Parses the flags, sets up the failures, and runs; returns the run's exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus")
    parser.add_argument("run", type=Path)
    parser.add_argument("--recipe")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--kill-in-save", type=int)
    parser.add_argument("--term-at", type=int)
    parser.add_argument("--term-in-save", type=int)
    parser.add_argument("--hang-at", type=int)
    parser.add_argument("--set", nargs="+", default=[])
    args = parser.parse_args()

    from bert_jax.io.log_handler import set_up_logging
    from bert_jax.parallel.processes import config_from_environment, initialize

    set_up_logging()
    initialize(config_from_environment())
    set_up_failures(args)
    from bert_jax.train.run import run

    try:
        if args.recipe:
            from tests.helpers.pretraining_recipes import small_experiment

            small = small_experiment(args.recipe, Path(args.corpus), steps=args.steps)
            return run(small, args.run)
        return run(override(experiment(args.corpus, args.steps), args.set), args.run)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def set_up_failures(args: argparse.Namespace) -> None:
    """Wraps functions of the loop to record batches, and to kill or stop the process."""
    import jax

    from bert_jax.parallel import sharding
    from bert_jax.runs import hooks
    from bert_jax.runs.checkpoints import checksums

    args.run.mkdir(parents=True, exist_ok=True)
    here = f"{jax.process_count()}-{jax.process_index()}"
    put_batch, call, write = sharding.put_batch, hooks.call_hooks, checksums.write_checksums

    def recording(batch, batch_sharding):
        rows = [hashlib.sha256(r.tobytes()).hexdigest()[:12] for r in batch["input_ids"]]
        with (args.run / f"rows-{here}.txt").open("a") as stream:
            stream.write(" ".join(rows) + "\n")
        return put_batch(batch, batch_sharding)

    def accident(watching, event):
        call(watching, event)
        if event.step == args.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if event.step == args.term_at and jax.process_index() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        if event.step == args.hang_at and jax.process_index() == jax.process_count() - 1:
            threading.Event().wait()

    def half_written(folder, step=None):
        if folder.name.split(".")[0] == str(args.kill_in_save):
            os.kill(os.getpid(), signal.SIGKILL)
        if folder.name.split(".")[0] == str(args.term_in_save):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        write(folder, step)

    sharding.put_batch, hooks.call_hooks, checksums.write_checksums = (
        recording,
        accident,
        half_written,
    )


if __name__ == "__main__":
    sys.exit(main())
