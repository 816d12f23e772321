# `make run` starts the broker, `make test` checks everything, `make demo` shows it. Each sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Most tests wait for something more often than they compute: one worker more than there are cores.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# What `make test-fast` and `make coverage` run: no Spark, browser or other brokers, and nothing that takes minutes.
FAST := $(addprefix tests/,access broker classic cli client conformance journal line mqtt process sinks storage topics)

.PHONY: help run demo test test-fast coverage lint bench soak fuzz clean
.DEFAULT_GOAL := help

help:            ## show this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

run: $(VENV)/.run-ready   ## set up and start the broker on its defaults (ARGS="--listen mqtt://127.0.0.1:0" to change)
	$(BIN)/pyrite serve $(ARGS)

demo: $(VENV)/.demo-ready ## broker, 50 devices with faults, Spark pipeline and its alerts, all at once, in some minutes
	$(BIN)/pyrite pipeline demo $(ARGS)

test: lint       ## set up, check style, types and dependency direction, and run the whole suite
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup $(ARGS)

test-fast: $(VENV)/.test-ready ## the quick part of the suite, in under two minutes
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup $(ARGS) $(FAST)

coverage: $(VENV)/.test-ready ## which lines the quick part of the suite runs; the page is htmlcov/index.html
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --cov=pyrite --cov-report=html --cov-report=term:skip-covered $(ARGS) $(FAST)

lint: $(VENV)/.dev-ready  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev-ready ## measure against mosquitto, nats-server and amqtt, and Spark; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.spark)

soak: $(VENV)/.dev-ready  ## every attack for a minute (SECONDS=4 for less); ARGS=--write-figures updates docs/security.md
	PYRITE_SOAK=$(or $(SECONDS),60) $(BIN)/pytest -n0 -q -s tests/hostile/test_hostile.py $(ARGS)

fuzz: $(VENV)/.dev-ready  ## fuzz the MQTT connection for a minute (ARGS="-max_total_time=600" for longer)
	$(BIN)/python fuzz/fuzz_mqtt.py -max_total_time=60 $(ARGS) fuzz/corpus

clean:           ## remove everything that make made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov tests/node/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian keeps venv in a package of its own; virtualenv, which pip alone can bring, does as well.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m pip install --user --quiet virtualenv && $(PYTHON) -m virtualenv --quiet $(VENV); }

$(VENV)/.run-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.demo-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[spark]"
	touch $@ $(VENV)/.run-ready

$(VENV)/.test-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[test]"
	touch $@ $(VENV)/.run-ready

$(VENV)/.dev-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[dev]"
	touch $@ $(VENV)/.run-ready $(VENV)/.demo-ready $(VENV)/.test-ready
