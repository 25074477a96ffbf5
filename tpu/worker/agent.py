"""Started on a host by the launcher: agent.py VERB RUN_URL INCARNATION HOST.

    preflight   is this host fit to train; report in the bucket; exit code 0, 76 if another
                slice may be, 78 if none would
    start       the systemd unit that trains; a second start does nothing
    stop        save and end
    unit        what the systemd unit runs

HOST is its number, or `auto`. Standard library only, from Python 3.10 on.
"""

import sys
from pathlib import Path

# A script's own folder is no place to import from: its names would hide others.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from bert_jax.errors import ConfigError, UserError  # noqa: E402
from tpu import protocol, strict_json  # noqa: E402
from tpu.worker import host, preflight, service, settings, storage, unit  # noqa: E402


def main(words: list[str]) -> int:
    """Returns the exit code."""
    if len(words) != 4 or words[0] not in _VERBS:
        print(f"usage: agent.py {'|'.join(_VERBS)} RUN_URL INCARNATION HOST", file=sys.stderr)
        return protocol.EXIT_USAGE_BSD
    verb, run_url, incarnation, word = words
    try:
        this, told = host.parse(run_url, incarnation), settings.from_environment()
        return _VERBS[verb](this, word, told)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        refused = isinstance(error, storage.StorageError) and error.lasting
        wrong = refused or isinstance(error, ConfigError)
        return protocol.EXIT_CONFIG if wrong else protocol.EXIT_PREFLIGHT


def _preflight(this: host.Host, word: str, told: settings.Settings) -> int:
    if service.how_it_ended(this) is not None or service.state(this).runs:
        print(f"{this.unit} runs or has run: this host was found fit")
        return protocol.EXIT_DONE
    order = host.read_order(this)
    report = preflight.examine(this, host.number(word, order, told), order, told)
    for warning in report.warnings:
        print(f"host {report.host} ({report.address}): warning: {warning}")
    for problem in report.problems:
        print(f"host {report.host} ({report.address}): {problem}", file=sys.stderr)
    print(f"host {report.host} ({report.address}) is {'fit' if report.ok else 'not fit'}")
    storage.write(this.folder.preflight(report.host), strict_json.to_text(report))
    if report.ok:
        return protocol.EXIT_DONE
    anywhere = all(problem.anywhere for problem in report.problems)
    return protocol.EXIT_CONFIG if anywhere else protocol.EXIT_PREFLIGHT


def _start(this: host.Host, word: str, told: settings.Settings) -> int:
    order = host.read_order(this)
    number = host.number(word, order, told)
    print(service.start(this, number, order.max_hours, Path(__file__).resolve()))
    return protocol.EXIT_DONE


def _stop(this: host.Host, word: str, told: settings.Settings) -> int:
    print(service.stop(this))
    return protocol.EXIT_DONE


def _unit(this: host.Host, word: str, told: settings.Settings) -> int:
    if not word.isdecimal():
        raise ConfigError(f"host {word!r}: the unit is given its number")
    return unit.run(this, int(word), told)


_VERBS = {"preflight": _preflight, "start": _start, "stop": _stop, "unit": _unit}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
