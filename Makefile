# `make run` starts the broker, `make test` runs all checks, `make demo` runs the demo. Each target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests wait more than they compute, so use one worker more than there are cores.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Tests of `make test-fast` and `make coverage`: no Spark, no browser, no other brokers, nothing marked slow.
FAST := -m "not slow" $(addprefix tests/,access broker cli client conformance journal line mqtt process sinks storage topics)

.PHONY: help run cluster demo test test-fast coverage lint bench wheel soak nemesis fuzz clean
.DEFAULT_GOAL := help

help:            ## show this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

run: $(VENV)/.run-ready   ## start the broker with defaults (ARGS="--listen mqtt://127.0.0.1:0" to change them)
	$(BIN)/pyrite serve $(ARGS)

cluster: $(VENV)/.cluster-ready ## run three nodes on this machine, until Ctrl-C (ARGS="--data DIR" keeps their data)
	$(BIN)/pyrite cluster local $(ARGS)

demo: $(VENV)/.demo-ready ## a broker, 20 devices with faults, a Spark pipeline and its alerts, in a few minutes
	$(BIN)/pyrite pipeline demo $(ARGS)

test: lint       ## check style, types and import direction, and run all tests
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup $(ARGS)

test-fast: $(VENV)/.test-ready ## run the quick tests, in under two minutes
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup $(ARGS) $(FAST)

coverage: $(VENV)/.test-ready ## measure line coverage of the quick tests; see htmlcov/index.html
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --cov=pyrite --cov-report=html --cov-report=term:skip-covered $(ARGS) $(FAST)

lint: $(VENV)/.dev-ready  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev-ready ## benchmark against mosquitto, nats-server and amqtt, and Spark; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.spark)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.tables)

wheel: $(VENV)/.dev-ready ## build wheels into dist/: with compiled modules for this platform, and pure Python for others
	$(BIN)/python -m hatchling build -t wheel
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m hatchling build -t wheel

soak: $(VENV)/.dev-ready  ## run every attack for a minute (SECONDS=4 for less); ARGS=--write-figures updates docs/security.md
	PYRITE_SOAK=$(or $(SECONDS),60) $(BIN)/pytest -n0 -q -s tests/hostile/test_hostile.py $(ARGS)

nemesis: $(VENV)/.test-ready ## faults against three nodes for a minute (MINUTES=60 SEED=1); needs root
	$(BIN)/python -m tests.cluster.nemesis --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(VENV)/.dev-ready  ## fuzz the MQTT connection for a minute (ARGS="-max_total_time=600" for longer)
	$(BIN)/python fuzz/fuzz_mqtt.py -max_total_time=60 $(ARGS) fuzz/corpus

clean:           ## remove everything that make created
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov tests/node/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian packages venv separately; fall back to virtualenv, which pip can install.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m pip install --user --quiet virtualenv && $(PYTHON) -m virtualenv --quiet $(VENV); }

$(VENV)/.run-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.cluster-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[cluster]"
	touch $@ $(VENV)/.run-ready

$(VENV)/.demo-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[spark]"
	touch $@ $(VENV)/.run-ready

$(VENV)/.test-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[test]"
	touch $@ $(VENV)/.run-ready $(VENV)/.cluster-ready

$(VENV)/.dev-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[dev]"
	touch $@ $(VENV)/.run-ready $(VENV)/.demo-ready $(VENV)/.test-ready $(VENV)/.cluster-ready
