"""Fakes Google Cloud behind the command `gcloud`, for tests and for trying things out.

    FAKE_CLOUD=FOLDER PATH=tests/helpers/tpu/bin:$PATH gcloud ...

    FOLDER/gcs/BUCKET/...   objects, as plain files; an object's generation is its file's mtime
           hosts/NODE-I/    the home of host I of a slice; what runs there is a local process
           state.json       queued resources, nodes, groups ...
           script.json      the failures to simulate, written by the test (see script.py)
           argv.jsonl       every command, one JSON list per line

It supports the commands and flags that this project uses, and rejects others like gcloud does.
"""
