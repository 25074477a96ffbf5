"""Downloads models and files from the Hugging Face hub, and uploads folders to it.

The library keeps what it downloads in its cache and reads HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME and
the token of `hf auth login`. Weights in pickles (`.bin`) and code are never downloaded.
"""

import contextlib
import functools
import re
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from bert_jax.errors import ConfigError, UserError

_MODEL = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_DATASET_FILE = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([\w.-]+))?/(.+)")
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
_OTHER_FORMATS = ("onnx/*", "openvino/*", "coreml/*")


class HubModel(NamedTuple):
    """Names a model of the hub, and a branch, tag or commit of it; None for the main branch."""

    id: str
    revision: str | None


def parse_model(name: str) -> HubModel | None:
    """Returns the model that "org/name" or "org/name@revision" names; None for other names."""
    found = _MODEL.fullmatch(name)
    return HubModel(found[1], found[2]) if found else None


# A command asks for the folder of its model many times, and each time the hub would be asked.
@functools.cache
def download_model(model: HubModel) -> Path:
    """Downloads what is not in the cache yet.

    Returns:
      The folder; its name is the hash of the commit.

    Raises:
      UserError: there is no such model or revision, or the hub cannot be reached and the cache
        lacks the model.
    """
    from huggingface_hub import snapshot_download

    with _as_user_errors(model.id, f"hf download {model.id}", model.revision):
        return Path(
            snapshot_download(
                model.id,
                revision=model.revision,
                allow_patterns=list(_FILES),
                ignore_patterns=list(_OTHER_FORMATS),
            )
        )


def local_file(path: str) -> str:
    """Returns the local copy of hf://datasets/ORG/NAME[@REVISION]/FILE; other paths unchanged.

    Raises:
      UserError: it has another form, there is no such file, or the hub cannot be reached.
    """
    if not path.startswith("hf://"):
        return path
    found = _DATASET_FILE.fullmatch(path)
    if found is None:
        raise UserError(f"{path}: expected hf://datasets/ORG/NAME/FILE, or ORG/NAME@REVISION")
    from huggingface_hub import hf_hub_download

    name, revision, file = found.groups()
    command = f"hf download --repo-type dataset {name} {file}"
    with _as_user_errors(path, command, revision):
        return hf_hub_download(name, file, repo_type="dataset", revision=revision)


def check_upload_name(name: str) -> None:
    """Raises a ConfigError if a name for `upload_folder` is not ORG/NAME."""
    model = parse_model(name)
    if model is None or model.revision:
        raise ConfigError(f"--push-to-hub {name}: expected ORG/NAME")


def upload_folder(folder: Path, name: str) -> str:
    """Uploads a folder as the model ORG/NAME, which is made if there is none.

    Returns:
      The address of the commit.

    Raises:
      UserError: the token is missing or does not permit it, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    with _as_user_errors(name, f"hf upload {name} {folder}", None):
        api = HfApi()
        api.create_repo(name, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=folder)
        return str(commit.commit_url)


@contextlib.contextmanager
def _as_user_errors(name: str, command: str, revision: str | None) -> Generator[None]:
    from huggingface_hub import errors

    suffix = f" --revision {revision}" if revision else ""
    try:
        yield
    except errors.RevisionNotFoundError:
        raise UserError(
            f"{name}: the Hugging Face hub has no revision {revision!r} of it"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RemoteEntryNotFoundError):
        raise UserError(
            f"{name}: not on the Hugging Face hub, or private or gated; check the name, or log in "
            "with `hf auth login`"
        ) from None
    except errors.LocalEntryNotFoundError:
        raise UserError(
            f"{name}: not in the cache of this machine, and the Hugging Face hub cannot be reached "
            f"(or HF_HUB_OFFLINE is set); with network, run `{command}{suffix}`, then the same "
            "command again"
        ) from None
    except (errors.HfHubHTTPError, errors.HFValidationError, ConnectionError) as error:
        reason = str(error).strip().split("\n")[-1]
        raise UserError(f"{name}: {reason}; the same by hand is `{command}{suffix}`") from None
