"""Defines the errors that a user can cause.

The command line prints their message without a traceback and exits with `exit_code`. Any other
exception is a bug in bert_jax.
"""


class UserError(Exception):
    """Reports a mistake that the user can correct.

    The message says what was found, where, what was expected, and what to do.
    """

    exit_code = 1


class ConfigError(UserError):
    """Reports an invalid config: unknown field, wrong type, or impossible combination of values."""

    exit_code = 2


class MissingExtraError(UserError, ImportError):
    """Reports that a feature needs an optional dependency, and how to install it."""

    def __init__(self, need: str, extra: str):
        super().__init__(
            f"{need}; install the extra [{extra}]: pip install 'bert_jax[{extra}]', or in a clone "
            f"pip install -e '.[{extra}]'"
        )
