"""What runs on hosts: two commands and no more, every word quoted for the host's shell."""

import shlex

from tpu import names
from tpu.launcher.backend import Remote

# $1 sha, $2 url of the bundle. Unpacked aside and renamed: twice at once is as good as once.
FETCH = """\
set -eu
base="$HOME/bert_jax"
to="$base/$1"
mkdir -p "$base"
if [ ! -d "$to" ]; then
  aside="$(mktemp -d "$base/.new-XXXXXX")"
  gcloud storage cp "$2" "$aside/bundle.tar.gz" --quiet
  found="$(gzip -dc "$aside/bundle.tar.gz" | sha256sum)"
  [ "${found%% *}" = "$1" ] || { echo "error: $2 is not the bundle $1" >&2; exit 78; }
  mkdir "$aside/code"
  tar -xzf "$aside/bundle.tar.gz" -C "$aside/code"
  mv -T "$aside/code" "$to" || [ -d "$to" ]
  rm -rf "$aside"
fi
exec bash "$to/tpu/worker/bootstrap.sh" "$1"
"""


def fetch(bucket: str, sha: str) -> Remote:
    """Brings the code to a host and sets up what it needs; does nothing where it is there."""
    url = names.bundle_url(bucket, sha)
    one_line = "; ".join(line for line in _joined(FETCH))
    command = shlex.join(["sh", "-c", one_line, "fetch", names.sha(sha), url])
    return lambda host: command


def agent(verb: str, sha: str, run_url: str, incarnation: int) -> Remote:
    """`agent.py VERB` of the bundle; the folder is below the host's own $HOME."""
    script = f'"$HOME"/bert_jax/{names.sha(sha)}/tpu/worker/agent.py'
    words = shlex.join([verb, names.url(run_url), str(incarnation)])
    # Where the code has not come to, nothing was started that could be stopped.
    unless = f"[ ! -e {script} ] || " if verb == "stop" else ""
    return lambda host: f"{unless}python3 {script} {words} {shlex.quote(str(host))}"


def _joined(script: str) -> list[str]:
    """The lines of a script such that `; ` may stand between them."""
    lines: list[str] = []
    for line in script.splitlines():
        text = line.strip()
        if lines and lines[-1].endswith(("then", "else")):
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines
