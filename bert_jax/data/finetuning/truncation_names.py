"""Names the truncations of long texts in the words that users type."""

from bert_jax.config.labeled_data import (
    WINDOW_POOLINGS,
    HeadTailTruncation,
    HeadTruncation,
    JointWindows,
    TailTruncation,
    Truncation,
    Windows,
)
from bert_jax.errors import ConfigError

TRUNCATIONS: dict[str, type[Truncation]] = {
    "head": HeadTruncation,
    "tail": TailTruncation,
    "head+tail": HeadTailTruncation,
    "windows": Windows,
    "hierarchical": JointWindows,
}
"""The types of truncation by the names that users type."""


def truncation_name(truncation: Truncation) -> str:
    """Returns the name of a truncation in `TRUNCATIONS`."""
    return next(name for name, cls in TRUNCATIONS.items() if isinstance(truncation, cls))


def make_truncation(
    name: str, window_pooling: str | None = None, num_windows: int | None = None
) -> Truncation:
    """Returns the truncation that a user typed.

    Raises:
      ConfigError: there is no such truncation or pooling, or it has no windows to pool or to count.
    """
    if name not in TRUNCATIONS:
        raise ConfigError(f"truncation is {name!r}; expected one of {', '.join(TRUNCATIONS)}")
    if num_windows is not None and TRUNCATIONS[name] is not JointWindows:
        raise ConfigError(
            f"num_windows is {num_windows} and truncation {name!r}; expected truncation "
            "'hierarchical', or no num_windows"
        )
    if window_pooling is None:
        return TRUNCATIONS[name]() if num_windows is None else JointWindows(num_windows=num_windows)
    if window_pooling not in WINDOW_POOLINGS:
        raise ConfigError(
            f"window_pooling is {window_pooling!r}; expected one of {', '.join(WINDOW_POOLINGS)}"
        )
    if TRUNCATIONS[name] is not Windows:
        raise ConfigError(
            f"window_pooling is {window_pooling!r} and truncation {name!r}; expected "
            "truncation 'windows', or no window_pooling"
        )
    return Windows(pooling=window_pooling)
