"""Computes the maximum cost of a run, asks for confirmation, and prints the price table."""

import sys
from collections.abc import Callable

from bert_jax.errors import ConfigError, UserError
from bert_jax.parallel.tpu_slices import all_slices, prices_as_of
from tpu.launcher.runs.manifest import RunManifest
from tpu.launcher.runs.run_context import max_slice_hours, usd_per_hour


def format_cost(manifest: RunManifest) -> str:
    """Returns the maximum cost (hours times list price) in one or two lines."""
    slice_type, hours = manifest.slice_type, max_slice_hours(manifest)
    price = usd_per_hour(manifest.slice, manifest.capacity == "spot")
    size = f"{slice_type.chips} chips, {slice_type.hosts} hosts"
    description = f"{slice_type.name} ({size}), {manifest.capacity}"
    if price is None:
        return f"cost: {description}: no price is published; at most {hours:g} h"
    price_per_chip = f"${price / slice_type.chips:.2f}"
    note = ""
    if manifest.capacity == "spot" and slice_type.generation.usd_spot is None:
        note = "\n      no spot price is published; this is the on-demand price, spot is cheaper"
    return (
        f"cost: {description}: {slice_type.chips} x {price_per_chip} = ${price:.2f} an hour; at "
        f"most {hours:.2f} h: ${hours * price:.2f} (list price as of "
        f"{prices_as_of()}; storage and traffic are extra)"
        f"{note}"
    )


def confirm(
    manifest: RunManifest, assume_yes: bool, prompt: Callable[[str], str] | None = None
) -> None:
    """Prints the maximum cost and asks for confirmation, unless --yes was passed.

    Raises:
      UserError: the answer was not yes.
      ConfigError: stdin is not a terminal, so nobody can answer.
    """
    print(format_cost(manifest), file=sys.stderr, flush=True)
    if assume_yes:
        return
    if prompt is None and not sys.stdin.isatty():
        raise ConfigError(
            "cannot ask for confirmation: stdin is not a terminal; pass --yes to accept the cost"
        )
    print("continue? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        reply = (prompt or input)("")
    except EOFError:  # Ctrl-D
        reply = ""
    if reply.strip().lower() not in ("y", "yes"):
        raise UserError("nothing was created")


def price_table(hours: float) -> str:
    """Returns the prices of all slices for one hour and for `hours`, as a Markdown table."""
    header = f"| slice | chips | spot, 1 h | spot, {hours:g} h | on demand, 1 h | {hours:g} h |"
    lines = [header, "|---|---|---|---|---|---|"]
    for slice_type in all_slices().values():
        prices = (slice_type.usd_per_hour(spot=True), slice_type.usd_per_hour(spot=False))
        cells = [
            "not published" if price is None else f"${price * factor:,.2f}"
            for price in prices
            for factor in (1, hours)
        ]
        lines.append(f"| {slice_type.name} | {slice_type.chips} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"List prices, US, as of {prices_as_of()}."])
