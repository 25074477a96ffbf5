"""Builds the shell commands that run on hosts over ssh; every argument is quoted."""

import shlex

from tpu import bucket_layout
from tpu.launcher.cloud.backend import RemoteCommand

# $1: sha of the bundle, $2: its URL. Unpacks into a temporary folder and renames it, so that two
# of these at once, or one that was interrupted, never leave a half-unpacked folder.
FETCH_SCRIPT = """\
set -eu
base="$HOME/bert_jax"
target="$base/$1"
mkdir -p "$base"
if [ ! -d "$target" ]; then
  staging="$(mktemp -d "$base/.new-XXXXXX")"
  gcloud storage cp "$2" "$staging/bundle.tar.gz" --quiet
  actual_sha="$(gzip -dc "$staging/bundle.tar.gz" | sha256sum)"
  [ "${actual_sha%% *}" = "$1" ] || { echo "error: $2 is not the bundle $1" >&2; exit 78; }
  mkdir "$staging/code"
  tar -xzf "$staging/bundle.tar.gz" -C "$staging/code"
  mv -T "$staging/code" "$target" || [ -d "$target" ]
  rm -rf "$staging"
fi
exec bash "$target/tpu/worker/bootstrap.sh" "$1"
"""


def fetch_command(bucket: str, sha: str) -> RemoteCommand:
    """Returns the command that downloads the code and installs its requirements; idempotent."""
    url = bucket_layout.bundle_url(bucket, sha)
    one_line = "; ".join(line for line in _join_lines(FETCH_SCRIPT))
    command = shlex.join(["sh", "-c", one_line, "fetch", bucket_layout.validate_sha(sha), url])
    return lambda host: command


def agent_command(verb: str, sha: str, run_url: str, attempt: int) -> RemoteCommand:
    """Returns the command that runs `agent.py VERB` from the bundle below the host's $HOME."""
    script = f'"$HOME"/bert_jax/{bucket_layout.validate_sha(sha)}/tpu/worker/agent.py'
    arguments = shlex.join([verb, bucket_layout.validate_url(run_url), str(attempt)])
    # A host without the code never started anything, so there is nothing to stop.
    skip_if_absent = f"[ ! -e {script} ] || " if verb == "stop" else ""
    return lambda host: f"{skip_if_absent}python3 {script} {arguments} {shlex.quote(str(host))}"


def _join_lines(script: str) -> list[str]:
    """Returns the lines of a script so that they can be joined with `; `."""
    lines: list[str] = []
    for line in script.splitlines():
        text = line.strip()
        if lines and lines[-1].endswith(("then", "else")):
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines
