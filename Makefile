# The commands for working on this repository. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The folder that `make quickstart` writes; a second run resumes an interrupted one.
OUTPUT ?= quickstart
# Additional pytest flags, for example: make test PYTEST_FLAGS="-k masking -x"
PYTEST_FLAGS ?=
# Test processes; each needs up to about 2.5 GB. Three keep two cores busy, because some tests wait
# for other processes.
JOBS ?= 3
# Two arenas: with one for each of its many threads, glibc keeps freed memory in all of them.
# --no-loadscope-reorder keeps the order of folders: xdist would start the files with many tests
# first, and leave the longest file, which has one test, for the end.
PYTEST := MALLOC_ARENA_MAX=2 $(BIN)/python -m pytest -q --tb=short -ra -n $(JOBS) --dist loadfile \
  --no-loadscope-reorder

# constraints.txt pins the versions that CI ran, each for the Python version it was resolved with.
# Python compiles modules when they are first imported; most of these gigabytes never are. With
# PYTHONDONTWRITEBYTECODE, every process would compile them again.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install install-parity quickstart test test-slow lint format docs clean

help:  ## print this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

install: $(VENV)/installed  ## create .venv with the package, all its features and the test tools

$(VENV)/installed: setup.py pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[all,test]'
	@touch $@

install-parity: $(VENV)/installed-parity  ## add PyTorch and transformers, for the parity tests

# seqeval has no wheel, and builds only with the setuptools-scm version of constraints.txt.
# PyTorch first and alone: resolved together with other packages, pip may pick the CUDA build (GBs).
$(VENV)/installed-parity: $(VENV)/installed
	$(PIP_INSTALL) 'torch==2.13.0'
	$(PIP_INSTALL) --editable '.[all,test,parity]'
	PIP_CONSTRAINT="$(CURDIR)/constraints.txt" $(BIN)/python -m pip install --quiet seqeval \
	  || echo "seqeval was not built: the tests that compare with it will skip"
	@touch $@

quickstart: $(VENV)/installed  ## train and export a small BERT on local documentation (about 15 minutes)
	$(BIN)/bert-jax quickstart --output $(OUTPUT)

test: $(VENV)/installed  ## run the tests; parity tests are skipped if PyTorch is missing
	$(PYTEST) $(PYTEST_FLAGS)

test-slow: $(VENV)/installed  ## run the tests marked slow, which `make test` leaves out
	$(PYTEST) -m slow $(PYTEST_FLAGS)

lint: $(VENV)/installed  ## run ruff check, ruff format --check and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/installed  ## fix and format the code, and rewrite the pages made from code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/python docs/generate_files.py

docs: $(VENV)/installed-docs  ## build the documentation site in site/; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(VENV)/installed-docs: $(VENV)/installed
	$(PIP_INSTALL) --editable '.[all,test,docs]'
	@touch $@

clean:  ## delete the environment, caches and the site; trained models stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build site *.egg-info
