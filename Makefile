# Everything a newcomer needs: `make demo` and `make test` set up what they use.
SHELL := /bin/bash
ifndef PYTHON
PYTHON := $(shell for p in python3.13 python3.12 python3.11 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
HAS_PYTHON = test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing: install it, or set PYTHON=/path/to/python"; exit 1; }
BIN := .venv/bin
DEMO := .venv-demo
# One more than the cores of a small machine: tests with servers wait for them most of the time.
WORKERS ?= 3
PARALLEL := -n $(WORKERS) --dist loadscope --no-loadscope-reorder
OLDEST := .venv-oldest
OLDEST_PYSPARK := 4.1.0
MATRIX := 4.1.* 4.2.*
SMOKE_OF_SPARK := tests/sink/test_write.py tests/source/test_stream.py
API_OF_SPARK := tests/source/test_errors.py tests/source/test_browse.py tests/functions
ALL_WITH_SPARK := $(SMOKE_OF_SPARK) $(API_OF_SPARK) tests/worker/test_worker.py tests/metrics tests/jobs tests/test_install.py
# Delta Lake and Iceberg have jars for the oldest PySpark alone: elsewhere these tests are not collected.
LAKEHOUSE := tests/lakehouse
FUZZ_BODIES ?= 1000000
export SPARK_LOCAL_IP := 127.0.0.1
# Tests and Spark start hundreds of processes: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup lint types docs test ready test-fast test-rest test-oldest test-all test-matrix notebooks demo bench chaos soak fuzz screenshots wheel check-dist clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: .venv/installed ## Virtual environment with all of it, and Java where missing

.venv/installed: pyproject.toml scripts/provision.sh
	@scripts/provision.sh
	@$(HAS_PYTHON)
	@echo "Installing PySpark, the clients of all brokers and the tools of development into .venv:"
	@echo "1.7 GB, some four minutes, more where pip's cache is empty."
	@scripts/install.sh $(PYTHON) .venv --upgrade pip
	@scripts/install.sh $(PYTHON) .venv --editable '.[dev]'
	@touch $@

$(DEMO)/installed: pyproject.toml scripts/provision.sh
	@scripts/provision.sh
	@$(HAS_PYTHON)
	@echo "Installing PySpark and what the demo needs into $(DEMO):"
	@echo "0.9 GB, a minute, more where pip's cache is empty. It needs no broker: its queue is a file."
	@scripts/install.sh $(PYTHON) $(DEMO) --editable '.[spark,sql,jobs]'
	@touch $@

.venv/servers: .venv/installed
	@scripts/provision.sh servers
	@touch $@

.venv/spark.jsa: .venv/installed scripts/archive_classes.py
	@$(BIN)/python scripts/archive_classes.py $@ 2> .venv/spark.log || { cat .venv/spark.log; exit 1; }

# It shares all packages but PySpark with .venv.
$(OLDEST)/installed: .venv/installed scripts/beside_venv.sh
	@scripts/beside_venv.sh .venv $(OLDEST) 'pyspark==$(OLDEST_PYSPARK)'
	@touch $@

lint: setup ## Style, imports, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup ## mypy --strict
	$(BIN)/mypy

docs: setup ## The documentation as a site in build/site
	@$(BIN)/python -m scripts.generate_docs
	@$(BIN)/python -m scripts.draw
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

test-fast: setup ## Tests without Spark and servers
	$(BIN)/pytest -m 'not spark and not server and not slow' $(PARALLEL)

test: ready ## What a newcomer runs: the product proved small
	@scripts/beside.sh "smoke on PySpark $(OLDEST_PYSPARK)" \
	  '$(OLDEST)/bin/python -m pytest -m "spark and not server and not nightly and not wide" $(SMOKE_OF_SPARK)' \
	  scripts/timed.sh "tests" $(BIN)/pytest -m 'not wide and not nightly' $(PARALLEL)

ready:
	@scripts/timed.sh "set-up" $(MAKE) --no-print-directory .venv/servers .venv/spark.jsa $(OLDEST)/installed

test-rest: ready ## What `make test` leaves out and is not nightly: other configurations, more examples, Spark's API on the oldest
	@scripts/beside.sh "tests on PySpark $(OLDEST_PYSPARK)" '$(MAKE) --no-print-directory test-oldest' \
	  scripts/timed.sh "the rest of the tests" \
	  env EXAMPLES=1 $(BIN)/pytest -m '(wide or hypothesis) and not nightly' $(PARALLEL) --durations 25

test-oldest: $(OLDEST)/installed .venv/servers ## What else touches Spark's API, on the oldest supported PySpark and queues in files
	$(OLDEST)/bin/python -m pytest -m 'spark and not server and not nightly' $(API_OF_SPARK)
	$(OLDEST)/bin/python -m pytest -m 'not nightly' $(LAKEHOUSE)

test-all: ready ## Every test on the newest PySpark, then `test-matrix`: for the night
	@scripts/timed.sh "all tests" env EXAMPLES=1 $(BIN)/pytest $(PARALLEL) --durations 25
	@$(MAKE) --no-print-directory test-matrix

test-matrix: ready ## The tests with Spark on the last release of each PySpark we support, and on the newest
	@scripts/timed.sh "tables of Delta Lake and Iceberg" $(OLDEST)/bin/python -m pytest $(LAKEHOUSE)
	@rm $(OLDEST)/installed
	@for pyspark in $(MATRIX); do \
	  scripts/beside_venv.sh .venv $(OLDEST) "pyspark==$$pyspark" || exit 1; \
	  scripts/timed.sh "tests on PySpark $$pyspark" $(OLDEST)/bin/python -m pytest $(PARALLEL) $(ALL_WITH_SPARK) || exit 1; \
	done
	@scripts/timed.sh "tests on the newest PySpark" $(BIN)/pytest $(PARALLEL) $(ALL_WITH_SPARK)

notebooks: setup ## Run the notebooks, and keep what they show
	@$(BIN)/python -m scripts.run_notebooks

demo: $(DEMO)/installed ## Fill a queue, read it as a stream into Parquet, look at what came out
	@$(DEMO)/bin/babelqueue-spark demo

bench: .venv/servers ## Measure against the peers, or only BENCH="redis sql"; prints ratios
	@$(BIN)/python -m bench $(BENCH)

chaos: .venv/servers ## Ten minutes of faults, or CHAOS="--minutes 60 --seed 7 --brokers redis,kafka"; the ledger must match
	@$(BIN)/python -m chaos $(CHAOS)

soak: .venv/servers ## Ten minutes at 500 messages a second, and large amounts of what is hard
	@$(BIN)/python -m chaos soak $(SOAK)

fuzz: setup ## The codec against FUZZ_BODIES mutated bodies, guided by coverage
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --no-compile --editable '.[fuzz]'
	@$(BIN)/python -m fuzz.codec $(FUZZ_BODIES) .cache/fuzz

screenshots: .venv/servers ## Pictures of the live page for the documentation
	@SCREENSHOTS=docs/assets $(BIN)/pytest -q tests/live/test_screenshots.py

wheel: setup ## Build wheel and source distribution into dist/
	@rm -rf dist
	@$(BIN)/python -m build --quiet

check-dist: wheel ## Check what was built
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl

clean: ## Remove what the targets made
	rm -rf .venv $(DEMO) $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .cache
