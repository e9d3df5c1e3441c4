# Two commands do all the set-up: `make up` runs Detlab on this machine, `make test` passes the tests.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PORT ?= 8080
DATA ?= .detlab
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
OFFICIAL := .venv-official
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST_ARGS ?=
# Two at a time, file by file: most tests wait for processes more than they reckon.
TOGETHER := -n 2 --dist loadfile --no-loadscope-reorder
TORCH := torch==2.13.0

.PHONY: help up test test-full check format docs clean

help:
	@echo 'make up         run Detlab on this machine (PORT=8080 DATA=.detlab); Ctrl-C ends it'
	@echo 'make test       install what the tests need, and run them'
	@echo 'make test-full  the long tests too: every database, many rounds of failures'
	@echo 'make check      style, types and layers'
	@echo 'make docs       draw docs/states.md from the tables of the core'
	@echo 'make schema     write docs/experiment-config.schema.json anew'
	@echo 'make clean      remove the environment and all that Detlab has kept here'

up: $(VENV)/.installed
	@PORT=$(PORT) DATA=$(DATA) exec $(BIN)/jupyterhub -f jupyterhub_config.py

test: $(VENV)/.test-installed $(OFFICIAL)/.installed
	$(BIN)/python -m pytest -m "not full" $(TOGETHER) $(PYTEST_ARGS)

test-full: $(VENV)/.test-installed $(OFFICIAL)/.torch
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.check-installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.check-installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.check-installed
	$(BIN)/python -m detlab_master.diagrams > docs/states.md

schema: $(VENV)/.installed
	$(BIN)/python -m detlab_master.schema > docs/experiment-config.schema.json

clean:
	rm -rf $(VENV) $(OFFICIAL) .venv-mlflow $(DATA)
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Detlab needs Python 3.11 or newer; choose it with: make up PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); \
	  echo 'This Python cannot make environments. On Debian or Ubuntu, type: sudo apt install python3-venv'; exit 1; }
	@touch $@

# PyTorch first, and pinned: without a pin the registry's newest build comes, with several GB of CUDA libraries.
$(VENV)/.torch: | $(VENV)/.python
	@echo 'Installing PyTorch...'
	@if $(PIP) install -q --dry-run --report $(VENV)/report.json $(TORCH) $(PIP_ARGS) 2>/dev/null \
	  && grep -q '"nvidia-' $(VENV)/report.json; then \
	  echo 'This downloads about 3 GB: the build of PyTorch for NVIDIA GPUs, with its CUDA libraries.'; \
	  echo 'On a machine without a GPU the CPU build is enough (about 200 MB). For it, press Ctrl-C now and type:'; \
	  echo '  make up PIP_ARGS="--index-url ADDRESS"     with the address for CPU that pytorch.org/get-started names'; \
	  sleep 5; \
	fi
	@$(PIP) install -q $(TORCH) $(PIP_ARGS) 2>&1 | { grep -v '^WARNING' || true; }; exit $${PIPESTATUS[0]}
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.torch
	@echo 'Installing Detlab and what it needs (a minute or two, once)...'
	@$(PIP) install -q -e '.[all]' 2>&1 | { grep -v '^WARNING' || true; }; exit $${PIPESTATUS[0]}
	@touch $@

$(VENV)/.test-installed: pyproject.toml $(VENV)/.installed
	@echo 'Installing what the tests need...'
	@$(PIP) install -q -e '.[all,test]' 2>&1 | { grep -v '^WARNING' || true; }; exit $${PIPESTATUS[0]}
	@touch $@

$(VENV)/.check-installed: pyproject.toml $(VENV)/.test-installed
	@$(PIP) install -q -e '.[all,test,check]' 2>&1 | { grep -v '^WARNING' || true; }; exit $${PIPESTATUS[0]}
	@touch $@

# The official client, in an environment of its own: its package has the same import name as ours.
$(OFFICIAL)/.installed: | $(VENV)/.python
	@echo 'Installing the official Determined client for the compatibility tests...'
	@$(PYTHON) -m venv $(OFFICIAL)
	@$(OFFICIAL)/bin/python -m pip --disable-pip-version-check install -q 'determined==0.38.1' 'setuptools<81' 2>&1 \
	  | { grep -v '^WARNING' || true; }; exit $${PIPESTATUS[0]}
	@touch $@

# What the official package's Trainer needs, for the long tests only.
$(OFFICIAL)/.torch: | $(VENV)/.torch $(OFFICIAL)/.installed
	@echo 'Installing PyTorch for the official client too...'
	@$(OFFICIAL)/bin/python -m pip --disable-pip-version-check install -q $(TORCH) tensorboard 'setuptools<81' $(PIP_ARGS) 2>&1 \
	  | { grep -v '^WARNING' || true; }; exit $${PIPESTATUS[0]}
	@touch $@
