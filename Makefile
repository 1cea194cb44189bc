# `make run` plans, builds, runs and verifies the main job; `make test` checks everything.
# Both make their own environment.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Exactly the release that was tested: a bare range may pull gigabytes of another build.
TORCH ?= torch==2.13.0
# Test processes.
JOBS ?= 2

# What decides: analysis, legality, prices, refusals, and one whole way through.
CORE_TESTS := $(addprefix tests/test_,values.py facts.py refusals.py candidates.py policies.py \
    cost_registry.py cost_calibration.py cost_features.py device.py cli.py)

.PHONY: run test lint types unit slow optimised docs dist clean

run: $(VENV)/base.stamp
	$(BIN)/tirx-reduce run softmax 768x6144 --target metal
	$(BIN)/tirx-reduce run softmax 768x6144 --target cuda

test: lint types unit

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/dev.stamp
	$(BIN)/mypy

unit: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# The long runs: every mapping of the report, all public faults, 10,000 random programs. Hours, not minutes.
slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "slow and not gpu"

# Nothing may hang on `assert`: the core once more without them.
optimised: $(VENV)/dev.stamp
	$(BIN)/python -O -m pytest -q $(CORE_TESTS)

docs: $(VENV)/docs.stamp
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

dist: $(VENV)/dev.stamp
	rm -rf dist
	$(BIN)/python -m build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/base.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$(TORCH)" -e ".[dev]"
	touch $@ $(VENV)/base.stamp

$(VENV)/docs.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$(TORCH)" -e ".[dev,docs]"
	touch $@ $(VENV)/dev.stamp $(VENV)/base.stamp

clean:
	rm -rf build dist docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
