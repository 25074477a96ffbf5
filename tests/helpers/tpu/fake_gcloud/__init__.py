"""Fakes Google Cloud behind the command `gcloud`, for tests and for trying things out.

    FAKE_CLOUD=FOLDER PATH=tests/helpers/tpu/bin:$PATH gcloud ...

    FOLDER/gcs/BUCKET/...   objects, as plain files; an object's generation is its file's mtime
           hosts/NODE-I/    the home of host I of a slice; what runs there is a local process
           state.json       queued resources, nodes, groups ...
           script.json      what is to go wrong, written by whoever tests (see script.py)
           argv.jsonl       every command that was given, one JSON list a line

It knows the commands and flags that this project uses, and refuses others as gcloud does.
"""
