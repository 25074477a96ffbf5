"""The actions of the restart loop, done with gcloud; each is safe to do again."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bert_jax.errors import ConfigError, UserError
from tpu import strict_json
from tpu.launcher import remote
from tpu.launcher.backend import Argv, LiveSlice, Remote
from tpu.launcher.context import Run
from tpu.launcher.gcloud import Answer, GcloudError
from tpu.launcher.messages import recognise
from tpu.launcher.states import Create, Failure
from tpu.protocol import EXIT_PREFLIGHT, NOT_REPEATED, Order

CREATE_SECONDS = 15 * 60
DELETE_SECONDS = 30 * 60
INSTALL_SECONDS = 40 * 60
REMOTE_SECONDS = 15 * 60
STOP_SECONDS = 15 * 60


def create(run: Run, wish: Create) -> Failure | None:
    """Asks for a slice; what a creation that failed half way has left is taken away again."""
    for number, argv in enumerate(run.backend.create(wish.incarnation, wish.zone)):
        answer = run.runner.run(argv, seconds=CREATE_SECONDS)
        if answer.ok or answer.kind == "exists":
            continue
        if number:
            for words in run.backend.delete(wish.incarnation, wish.zone, frozenset()):
                run.runner.run(words, seconds=DELETE_SECONDS)
        return Failure(action="create", kind=answer.kind, text=str(GcloudError(argv, answer)))
    return None


def delete(run: Run, incarnation: int, zone: str, parts: frozenset[str]) -> list[str]:
    """Takes a slice away; returns what went wrong, absence not counted."""
    wrong: list[str] = []
    for argv in run.backend.delete(incarnation, zone, parts):
        answer = run.runner.run(argv, seconds=DELETE_SECONDS)
        if not answer.ok and answer.kind != "absent":
            wrong.append(str(GcloudError(argv, answer)))
    return wrong


def start(run: Run, live: LiveSlice) -> Failure | None:
    """Code, order, preflight, trainer, on all hosts."""
    try:
        write_order(run, live)
    except (UserError, ConfigError) as error:
        kind = error.kind if isinstance(error, GcloudError) else "config"
        return Failure(action="start", kind=kind, text=str(error), code=error.exit_code)
    return (
        warm_up(run, live)
        or fetch(run, live)
        or agent(run, live, "preflight")
        or agent(run, live, "start")
    )


def warm_up(run: Run, live: LiveSlice) -> Failure | None:
    """Where each host has an ssh of its own, the first spreads the key, and several would race."""
    if len(live.machines) == 1:
        return None
    (argv,) = run.backend.ssh(live, lambda host: "true", host=0)
    answer = run.runner.run(argv, seconds=REMOTE_SECONDS)
    return None if answer.ok else _failed(argv, answer)


def fetch(run: Run, live: LiveSlice) -> Failure | None:
    """Brings the code to all hosts and sets it up."""
    order = remote.fetch(run.bucket_url, run.manifest.bundle)
    return _on_hosts(run, live, order, INSTALL_SECONDS)


def agent(run: Run, live: LiveSlice, verb: str) -> Failure | None:
    """A verb of the agent on all hosts."""
    order = remote.agent(verb, run.manifest.bundle, run.folder.url, live.incarnation)
    return _on_hosts(run, live, order, STOP_SECONDS if verb == "stop" else REMOTE_SECONDS)


def write_order(run: Run, live: LiveSlice) -> Order:
    """Writes what the hosts of this life have to do; of what is there only the hours may change.

    Raises:
      UserError: this life has another order already.
    """
    folder = run.folder.incarnation(live.incarnation)
    order = run.manifest.order(run.folder.url, live.incarnation, live.addresses)
    if not run.bucket.write(folder.order, strict_json.to_text(order), generation=0):
        there = strict_json.from_text(Order, run.bucket.read(folder.order) or "", folder.order)
        if replace(there, max_hours=order.max_hours) != order:
            raise UserError(
                f"{folder.order} is the order of a slice with other hosts or another task; "
                f"`{run.words('down')}` and launch again: the next life gets its own"
            )
        if there != order:
            run.bucket.write(folder.order, strict_json.to_text(order))
    return order


def _on_hosts(run: Run, live: LiveSlice, what: Remote, seconds: float) -> Failure | None:
    commands = run.backend.ssh(live, what)
    if len(commands) == 1 or run.runner.dry:
        answers = [run.runner.run(argv, seconds=seconds) for argv in commands]
    else:
        with ThreadPoolExecutor(len(commands)) as pool:
            answers = list(pool.map(lambda argv: run.runner.run(argv, seconds=seconds), commands))
    for argv, answer in zip(commands, answers, strict=True):
        if not answer.ok:
            return _failed(argv, answer)
    return None


def _failed(argv: Argv, answer: Answer) -> Failure:
    """What a remote command that failed means: gcloud's own mistakes, ours, or the line's."""
    known = recognise(answer.err)
    own = known.kind in ("flag", "permission", "auth", "api", "ssh")
    if own or answer.code == 255:
        kind = known.kind if own else "ssh"
        return Failure(action="start", kind=kind, text=str(GcloudError(argv, answer)))
    lines = [line for line in (answer.err + answer.out).splitlines() if line.strip()]
    said = "; ".join(lines[-6:]) or f"code {answer.code}"
    if answer.code == EXIT_PREFLIGHT:
        return Failure(action="start", kind="preflight", text=said, code=answer.code)
    if answer.code in NOT_REPEATED:
        return Failure(action="start", kind="config", text=said, code=answer.code)
    return Failure(action="start", kind="other", text=said, code=answer.code)
