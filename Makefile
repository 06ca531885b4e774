# Outlast, for people who work on it. `make help` lists the targets; ARGS="…" is passed on where it makes sense.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.outlast-setup
# Most tests wait for other processes, so that two cores carry three of them; with four, leases run out on a slow machine.
JOBS ?= 3

.PHONY: help setup demo dev test test-all check fmt bench decisions defects explore prove

help:  ## List the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## Make .venv with everything pinned (nothing to do when nothing changed)
	@:

demo: $(STAMP)  ## Run the demo: a task that survives every crash window
	@$(BIN)/outlast demo $(ARGS)

dev: $(STAMP)  ## Run everything in one process, with reload
	@$(BIN)/outlast dev $(ARGS)

test: $(STAMP)  ## Run the whole test suite, in a few processes; above the store each test on one of both databases
	@$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-all: $(STAMP)  ## The same with every test on both, and the store's suites on one in memory as well
	@OUTLAST_TEST_ALL=1 $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

decisions: $(STAMP)  ## Let fifty people decide at once, a thousand times, and kill an API process in half of them
	@OUTLAST_TEST_DECISIONS=$(or $(ROUNDS),1000) $(BIN)/python -m pytest -q -o hangs_after=0 -o faulthandler_timeout=0 tests/drills/test_decisions.py $(ARGS)

defects: $(STAMP)  ## Put deliberate faults into the product and look whether the simulation finds each
	@$(BIN)/python -m tests.defects.runner $(ARGS)

explore: $(STAMP)  ## Play every pair of the store's verbs in every order of their statements, on PostgreSQL
	@$(BIN)/python -m tests.explorer $(ARGS)

prove: $(STAMP)  ## The long proof: a million schedules, then storms on both stores; hours. Keeps its report in docs/
	@$(BIN)/python -m docs.prove $(ARGS)

check: $(STAMP)  ## Formatting, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict
	@$(BIN)/lint-imports --no-logo

fmt: $(STAMP)  ## Format, and fix what can be fixed
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## Run the benchmarks
	@$(BIN)/python -m bench $(ARGS)

# hatchling comes first and builds without isolation, so that the build is made of pinned packages too. The stamp is
# written last: a setup that was cut short runs again. The lock is for two targets started at the same moment; the one
# that waited finds the stamp fresh.
$(STAMP): pyproject.toml constraints.txt
	@mkdir -p $(VENV); \
	if command -v flock >/dev/null; then exec 9>$(STAMP).lock; flock 9; fi; \
	if [ $@ -nt pyproject.toml ] && [ $@ -nt constraints.txt ]; then exit 0; fi; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Outlast needs Python 3.11 or newer: set PYTHON=... to one." >&2; exit 1; }; \
	if command -v uv >/dev/null; then \
	  [ -x $(BIN)/python ] || uv venv --quiet --allow-existing --python "$$(command -v $(PYTHON))" $(VENV); \
	  install="uv pip install --quiet --python $(BIN)/python"; \
	else \
	  if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	      || { echo "$(PYTHON) cannot make virtual environments: install uv, or the venv package of your" \
	                "system (python3-venv on Debian and Ubuntu)." >&2; exit 1; }; \
	    $(PYTHON) -m venv $(VENV); \
	  fi; \
	  install="$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input"; \
	fi; \
	$$install -c constraints.txt hatchling; \
	$$install -c constraints.txt --no-build-isolation -e '.[dev,embedded]'; \
	touch $@
