"""Lists the modules of bert_jax that a command really runs: those of which a function was called.

    python -m bench.files_of_a_run pretrain bert --run run --arg size=tiny corpus=prepared steps=4

Importing a module and creating its classes does not count. `docs/reading.md` quotes the list for a
pretraining run.
"""

import inspect
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import bert_jax
from bert_jax.__main__ import main

PACKAGE = Path(bert_jax.__file__).parent


class CalledFunctions:
    """Collects the names of the functions of bert_jax that are called, by module."""

    def __init__(self):
        self.by_module: dict[str, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Records a call; `sys.setprofile` calls this for every function and class body."""
        code = frame.f_code
        # Bodies of modules and classes are not optimized code.
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED:
            file = Path(code.co_filename)
            if file.is_relative_to(PACKAGE):
                name = file.relative_to(PACKAGE).as_posix()
                self.by_module.setdefault(name, set()).add(code.co_qualname)


def run() -> int:
    """Runs the command and prints its modules with their functions; returns its exit code."""
    called = CalledFunctions()
    threading.setprofile(called)
    sys.setprofile(called)
    code = main(sys.argv[1:])
    sys.setprofile(None)
    # Comprehensions and lambdas run when a module is imported, too.
    named = {name: {f for f in found if "<" not in f} for name, found in called.by_module.items()}
    shown = {name: functions for name, functions in sorted(named.items()) if functions}
    for name, functions in shown.items():
        print(f"{name}: {', '.join(sorted(functions))}")
    print(f"{len(shown)} modules")
    return code


if __name__ == "__main__":
    sys.exit(run())
