# Everything a newcomer needs: `make demo` and `make test` set up what they use.
SHELL := /bin/bash
ifndef PYTHON
PYTHON := $(shell for p in python3.13 python3.12 python3.11 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
BIN := .venv/bin
PARALLEL := -n 2 --dist loadscope
OLDEST := .venv-oldest
OLDEST_PYSPARK := 4.1.0
FUZZ_BODIES ?= 1000000
export SPARK_LOCAL_IP := 127.0.0.1

.DEFAULT_GOAL := help
.PHONY: help setup lint types test test-fast test-oldest demo bench fuzz wheel clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: .venv/installed ## Virtual environment and Java, where missing

.venv/installed: pyproject.toml scripts/provision.sh
	@scripts/provision.sh
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing: install it, or set PYTHON=/path/to/python"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

.venv/servers: .venv/installed
	@scripts/provision.sh servers
	@touch $@

$(OLDEST)/installed: .venv/servers
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip freeze --exclude-editable --exclude pyspark --exclude py4j > $(OLDEST)/others.txt
	$(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/others.txt --editable '.[dev]' 'pyspark==$(OLDEST_PYSPARK)'
	@touch $@

lint: setup ## Style, imports, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup ## mypy --strict
	$(BIN)/mypy

test-fast: setup ## Tests without Spark and servers
	$(BIN)/pytest -m 'not spark and not server'

test: .venv/servers ## All tests on the newest PySpark, then those with Spark on the oldest
	@scripts/timed.sh "fast tests" $(MAKE) --no-print-directory test-fast
	@scripts/timed.sh "tests with servers and Spark" $(BIN)/pytest -m 'spark or server' $(PARALLEL) --durations 25
	@scripts/timed.sh "tests on PySpark $(OLDEST_PYSPARK)" $(MAKE) --no-print-directory test-oldest

test-oldest: $(OLDEST)/installed ## The Spark tests on the oldest supported PySpark
	$(OLDEST)/bin/pytest $(PARALLEL) tests/source/test_stream.py tests/source/test_browse.py tests/sink/test_write.py tests/functions

demo: setup ## Fill a queue, read it as a stream into Parquet, look at what came out
	@$(BIN)/python -m jobs.demo

bench: .venv/servers ## Measure against the peers; prints ratios
	@$(BIN)/python -m bench

fuzz: setup ## The codec against FUZZ_BODIES mutated bodies, guided by coverage
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	@$(BIN)/python -m fuzz.codec $(FUZZ_BODIES) .cache/fuzz

wheel: setup ## Build wheel and source distribution into dist/
	@$(BIN)/python -m build --quiet

clean: ## Remove what the targets made
	rm -rf .venv $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .cache
