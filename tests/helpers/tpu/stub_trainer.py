"""Replaces the trainer's Python in tests: does at once what the arguments after --arg say.

    end=CODE       ends with that code
    run=yes        waits for SIGTERM, saves a file, ends with 75
    say=NAME       prints the value of that variable
    die=yes        is killed

With --output, it writes the files of a shard of `bert-jax glue`; its log and its results contain
the line of `say`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

options = dict(word.split("=", 1) for word in sys.argv if "=" in word)
if "--output" in sys.argv:
    line = f"{options['say']} is {os.environ.get(options['say'])}"
    output = Path(sys.argv[sys.argv.index("--output") + 1])
    if "--shard" in sys.argv:
        cell = output / f"cell-{sys.argv[sys.argv.index('--shard') + 1]}"
        for file, text in (
            (cell / "log.txt", f"begins\n{line}\n{line}"),
            (cell / "finished.json", "{}"),
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    else:
        (output / "results.json").write_text(json.dumps({"failed": {"cell-0": line}}))
        (output / "table.md").write_text(line)
    sys.exit(0)
run = Path(sys.argv[sys.argv.index("--run") + 1])
checkpoints = Path(sys.argv[sys.argv.index("--checkpoints") + 1])
checkpoints.mkdir(parents=True, exist_ok=True)
(run / "began.txt").write_text(f"{os.environ['BERT_JAX_PROCESS_ID']}\n")


def save(*_: object) -> None:
    (checkpoints / "7").mkdir(exist_ok=True)
    (checkpoints / "7" / "checksums.json").write_text("{}")
    (run / "saved.txt").write_text("saved\n")
    print("saved step 7", flush=True)
    sys.exit(75)


signal.signal(signal.SIGTERM, save)
print("begins", flush=True)
if "say" in options:
    print(f"{options['say']} is {os.environ.get(options['say'])}", flush=True)
if "die" in options:
    os.kill(os.getpid(), signal.SIGKILL)
while "run" in options:
    time.sleep(0.05)
sys.exit(int(options.get("end", 0)))
