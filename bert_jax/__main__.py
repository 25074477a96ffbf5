"""Runs the command line for `python -m bert_jax`, like the console script `bert-jax`."""

import sys

from bert_jax.cli import main

sys.exit(main())
