"""What a run may cost at most, said before anything is created; and the table of all slices."""

import sys
from collections.abc import Callable

from bert_jax.errors import ConfigError, UserError
from bert_jax.hardware.tpu_slices import all_slices, prices_as_of
from tpu.launcher.context import slice_hours, usd_per_hour
from tpu.launcher.manifest import Manifest


def bill(manifest: Manifest) -> str:
    """Hours times list price, in one or two lines."""
    kind, hours = manifest.kind, slice_hours(manifest)
    price = usd_per_hour(manifest.slice, manifest.capacity == "spot")
    what = f"{kind.name} ({kind.chips} chips, {kind.hosts} hosts), {manifest.capacity}"
    if price is None:
        return f"cost: {what}: no price is published; at most {hours:g} h"
    each = f"${price / kind.chips:.2f}"
    note = ""
    if manifest.capacity == "spot" and kind.generation.usd_spot is None:
        note = "\n      no spot price is published; this is the price on demand, spot is cheaper"
    return (
        f"cost: {what}: {kind.chips} x {each} = ${price:.2f} an hour; at most {hours:.2f} h: "
        f"${hours * price:.2f} (list price as of {prices_as_of()}; storage and traffic are extra)"
        f"{note}"
    )


def confirm(manifest: Manifest, yes: bool, ask: Callable[[str], str] | None = None) -> None:
    """Shows the bill, and asks unless --yes was given.

    Raises:
      UserError: the answer was not yes.
      ConfigError: nobody is there to be asked.
    """
    print(bill(manifest), file=sys.stderr, flush=True)
    if yes:
        return
    if ask is None and not sys.stdin.isatty():
        raise ConfigError("nobody is there to say yes to this; give --yes")
    print("go on? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        said = (ask or input)("")
    except EOFError:  # Ctrl-D
        said = ""
    if said.strip().lower() not in ("y", "yes"):
        raise UserError("nothing was created")


def table(hours: float) -> str:
    """The prices of all slices, as Markdown: an hour, and so many hours."""
    head = f"| slice | chips | spot, 1 h | spot, {hours:g} h | on demand, 1 h | {hours:g} h |"
    lines = [head, "|---|---|---|---|---|---|"]
    for kind in all_slices().values():
        prices = (kind.usd_per_hour(spot=True), kind.usd_per_hour(spot=False))
        cells = [
            "not published" if price is None else f"${price * factor:,.2f}"
            for price in prices
            for factor in (1, hours)
        ]
        lines.append(f"| {kind.name} | {kind.chips} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"List prices, US, as of {prices_as_of()}."])
