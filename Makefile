# `make run` and `make test` each work alone on a fresh machine: they make the environment they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-federation test-package test-ray lint setup clean

run: $(READY)
	$(BIN)/fedmrl compare quickstart --methods fedmrl,standalone,fedproto

test: $(READY)
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term-missing

test-federation: $(READY)
	$(BIN)/python -m pytest -m federation tests/flower -v --durations=0

# Builds the package, installs it in new environments, alone and with each extra, and runs it there.
test-package: $(READY)
	$(BIN)/python -m pytest -m package tests/test_package.py -v --durations=0

# Installs Ray, and starts, kills and resumes clusters of two nodes on this machine.
test-ray: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,ray]'
	$(BIN)/python -m pytest -m "slow_ray or not slow_ray" tests/federation/test_cluster.py tests/federation/test_hosts.py tests/federation/test_tasks.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedmrl needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
