# Needs Python 3.11 or newer and make; everything else is installed into .venv.

PYTHON ?= python3
BIN := .venv/bin
TESTS := tests/unit tests/packaging tests/integration tests/semantics tests/faults
LUA := build/lua
# Most tests wait for a worker: two cores serve three at once. They share a server that REDIS_URL names, one by one.
PARALLEL := $(if $(REDIS_URL),-n 0,-n 3 --dist loadgroup)

.PHONY: help demo test test-all matrix chaos smoke lint bench clean
.DELETE_ON_ERROR:

help:  ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: .venv/demo.stamp  ## show it at work: a server, GPU workers, a beat, real tasks, a killed worker
	@$(BIN)/python -m celery_gpulease.demo --picture build/demo.png

test: .venv/dev.stamp  ## run the tests of every day
	$(BIN)/python -m pytest $(TESTS) $(PARALLEL) -m "not long"

test-all: .venv/dev.stamp  ## run every test that needs no Docker, those of every day and the long ones, the matrix and chaos
	$(BIN)/python -m pytest $(TESTS) $(PARALLEL)
	$(BIN)/python -m tests.matrix
	$(BIN)/python -m tests.chaos

matrix: .venv/bin/python  ## run some tests with other versions of Python, Celery, redis-py and the server: ROWS, or all
	$(BIN)/python -m tests.matrix $(ROWS)

chaos: .venv/dev.stamp  ## break everything at random for MINUTES (2); SEED says what, and BROKER (redis, rabbitmq) too
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) $(if $(BROKER),--broker $(BROKER))

smoke: .venv/dev.stamp  ## run the smoke tests, in containers (not without Docker, nor with DOCKER=no) and in plain processes
	$(BIN)/python -m pytest tests/smoke $(if $(filter no,$(DOCKER)),-m "not docker")

lint: .venv/dev.stamp  ## check style, types, architecture and the Lua scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@command -v luacheck >/dev/null || { echo "luacheck is missing: apt-get install lua-check, or luarocks install luacheck" >&2; exit 1; }
	rm -rf $(LUA)
	$(BIN)/python -m celery_gpulease.ledger.scripts $(LUA)
	luacheck --no-color $(LUA)

bench: .venv/dev.stamp  ## print the performance table, or SECTIONS of it, and leave it in build/bench.md; QUICK=1 is a smoke run
	$(BIN)/python -m tests.benchmarks $(SECTIONS)

clean:  ## remove all that was made here
	rm -rf .venv build dist celerybeat-schedule* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch .venv/demo.stamp $@  # dev brings all that the demo needs
