"""`python3 -m tpu.launcher VERB ...`; `tpu/pod` is the short way to it."""

import sys

from tpu.launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
