"""Runs `python3 -m tpu.launcher COMMAND ...`; the script `tpu/tpuctl` calls it."""

import sys

from tpu.launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
