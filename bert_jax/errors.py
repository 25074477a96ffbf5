"""What a user can get wrong, as exceptions with one clear message each.

The command line prints the message and exits with `exit_code`; tracebacks are for our own bugs.
"""


class UserError(Exception):
    """What the user can mend: the message says what was found, what was expected, what to do."""

    exit_code = 1


class ConfigError(UserError):
    """A configuration that cannot be right: unknown field, wrong type, impossible combination."""

    exit_code = 2
