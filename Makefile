# Every target sets up .venv by itself; a second call re-uses it.
#   make PYTHON=python3.12 demo      another interpreter
#   make test ARGS="-k radix -x"     arguments for pytest

SHELL := /bin/bash
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENTS := .venv-clients
OPENAI := $(foreach major,1 2 3,.venv-openai-$(major)/.installed)
PIP := -m pip install -qq --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-clients lint format bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create or update .venv

demo: $(STAMP)  ## run a program with fork, select and gen on the embedded model
	@$(BIN)/python examples/demo.py

# One tensor thread a process: the test processes share the cores among them.
test: $(STAMP)  ## the whole test suite, lint included
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-clients: $(STAMP) $(CLIENTS)/.installed $(OPENAI)  ## DSPy and openai 1, 2, 3 (own environments)
	@$(BIN)/python -m pytest test/e2e/test_dspy.py test/e2e/test_openai_clients.py $(ARGS)

lint: $(STAMP)  ## ruff check, ruff format --check, mypy (strict)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)  ## apply ruff's fixes and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## every benchmark with its defaults: no GPU, no download
	@failed=; for main in benchmark/*/__main__.py; do \
	  name=benchmark.$$(basename $$(dirname $$main)); echo; echo "== $$name"; \
	  $(BIN)/python -m $$name || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

clean:  ## remove .venv, caches and build outputs
	@rm -rf $(VENV) $(CLIENTS) .venv-openai-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -rf python/*.egg-info
	@find python test tools examples benchmark -name __pycache__ -type d -prune -exec rm -rf {} +

# A machine without an NVIDIA GPU gets the torch release the tests were run with; with one, pip is
# free to choose the build that fits its driver.
$(STAMP): pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; '$(PYTHON)' is not. Try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV): torch and the test tools, a few minutes the first time ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if nvidia-smi -L >/dev/null 2>&1; then pins=; else pins="--constraint constraints-cpu.txt"; fi; \
	  $(BIN)/python $(PIP) $$pins --editable '.[dev]'
	@touch $@

# DSPy wants older releases of packages that .venv holds; it lives apart and needs none of ours.
$(CLIENTS)/.installed: test/e2e/requirements-clients.txt
	@echo "Setting up $(CLIENTS) ..."
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python $(PIP) --requirement $<
	@touch $@

.venv-openai-%/.installed: test/e2e/openai-%.txt
	@echo "Setting up $(@D) ..."
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(PIP) --requirement $<
	@touch $@
