"""`python -m bert_jax`, the same as the console script `bert-jax`."""

import sys

from bert_jax.cli import main

sys.exit(main())
