# Everything that a reader of this repository runs, in one place. `make help` lists it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where `make quickstart` writes; a second run goes on where the first one stopped.
OUTPUT ?= quickstart
# More pytest flags, for example: make test PYTEST_FLAGS="-k masking -x"
PYTEST_FLAGS ?=
# Test files that run side by side; each process takes about 2 GB.
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -q --tb=short -ra -n $(JOBS) --dist loadfile

# constraints.txt pins what CI ran; its markers keep the pins to the Python they were made with.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install install-parity quickstart test test-slow lint format clean

help:  ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

install: $(VENV)/installed  ## .venv with the package and what its tests need

$(VENV)/installed: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[test]'
	@touch $@

install-parity: $(VENV)/installed-parity  ## the same with PyTorch and transformers, for the comparisons

# seqeval is source only, and builds with the setuptools-scm of constraints.txt, not with newer ones.
# PyTorch goes first and alone: resolved beside other packages it may bring gigabytes of CUDA.
$(VENV)/installed-parity: $(VENV)/installed
	$(PIP_INSTALL) 'torch==2.13.0'
	$(PIP_INSTALL) --editable '.[test,parity]'
	PIP_CONSTRAINT="$(CURDIR)/constraints.txt" $(BIN)/python -m pip install --quiet seqeval \
	  || echo "seqeval was not built: the tests that compare with it will skip"
	@touch $@

quickstart: $(VENV)/installed  ## documentation on this machine -> a trained, exported BERT (about 14 minutes)
	$(BIN)/bert-jax quickstart --output $(OUTPUT)

test: $(VENV)/installed  ## the tests; those that compare with PyTorch skip where it is absent
	$(PYTEST) $(PYTEST_FLAGS)

test-slow: $(VENV)/installed  ## the tests that take more than about 20 seconds each
	$(PYTEST) -m slow $(PYTEST_FLAGS)

lint: $(VENV)/installed  ## ruff check, ruff format --check, pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/installed  ## rewrite the code as `make lint` wants it
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

clean:  ## remove the environment and caches, not what was trained
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build *.egg-info
