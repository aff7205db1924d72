# Everything goes into .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test test-slow test-installs sabotage attack check docs bench clean
.DEFAULT_GOAL := train

# Train ERSAC on DeepSea and leave a picture under runs/.
# Settings: make train ARGS="--depth 40 --seeds 8"
train: $(VENV)/.run
	$(BIN)/ersac train deep-sea $(ARGS)

# The whole suite, types and style included. One test: make test ARGS="-k vtrace".
# Most of its time is spent compiling, so XLA's optimisation is off.
test: $(VENV)/.dev check
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest -n 2 -m "not slow" $(ARGS)

# What takes longer than a commit should wait for.
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m slow --timeout 3600 $(ARGS)

# The wheel in fresh environments: Python 3.11 to 3.13 (those on the PATH, or named with
# ARGS="--python /path/to/python3.12"), every extra alone, lowest and newest dependencies.
test-installs: $(VENV)/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/packaging/fresh_installs.py $(ARGS)

# Each fault of tests/faults.py is put into a copy of the source; a test must fail.
# The faults of some files: make sabotage ARGS="disk.py tables.py"
sabotage: $(VENV)/.dev
	$(BIN)/python tests/sabotage.py --jobs 2 $(ARGS)

# The attack on reliability and security: about 180 trials from outside, a quarter of an hour.
# Some of them: make attack ARGS="--only signal"
attack: $(VENV)/.dev
	$(BIN)/python tests/reliability/attack.py --jobs 2 $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

# The documentation as a site, in site/; a warning is an error.
docs: $(VENV)/.dev
	$(BIN)/zensical build --strict

bench: $(VENV)/.dev
	$(BIN)/ersac bench $(ARGS)

clean:
	rm -rf $(VENV) site .cache .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ersac needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@ $(VENV)/.run
