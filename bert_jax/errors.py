"""What a user can get wrong, as exceptions with one clear message each.

The command line prints the message and exits with `exit_code`; a traceback is for our own bugs only.
"""


class UserError(Exception):
    """Something the user can mend: the message names what was found, what was expected, what to do."""

    exit_code = 1


class ConfigError(UserError):
    """A configuration value that cannot be right: unknown field, wrong type, impossible combination."""

    exit_code = 2
