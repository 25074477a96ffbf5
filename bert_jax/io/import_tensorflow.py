"""Imports TensorFlow without the lines about GPU drivers that it writes to standard error.

Importing it, TensorFlow 2.21 writes them before its log is set up, whatever TF_CPP_MIN_LOG_LEVEL
says; that variable is for what it logs afterwards.
"""

import contextlib
import importlib
import os
import sys
import tempfile
from types import ModuleType


def import_tensorflow() -> ModuleType:
    """Imports and returns TensorFlow; what it wrote to standard error is shown if that fails.

    Until then, nothing else of this process reaches standard error, other threads included.

    Raises:
      ModuleNotFoundError: it is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" in sys.modules:  # which Python also uses to forbid an import, with None
        return importlib.import_module("tensorflow")
    try:
        saved = os.dup(2)
    except OSError:  # standard error is closed
        return importlib.import_module("tensorflow")
    with contextlib.closing(os.fdopen(saved, "wb")), tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            return importlib.import_module("tensorflow")
        except BaseException:
            written.seek(0)
            os.write(saved, written.read())
            raise
        finally:
            os.dup2(saved, 2)
