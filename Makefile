# Everything a user needs: make setup | demo | test | check | docs. The first call of any of them sets up .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_OUTPUT ?= runs/demo

.PHONY: help setup demo test check format clean
.DEFAULT_GOAL := help

help:
	@echo "make setup   virtual environment in $(VENV), with a torch build that fits this machine"
	@echo "make demo    count, select, train, export and evaluate on a small target made here (about 10 minutes)"
	@echo "make test    the test suite"
	@echo "make check   lint and types"

setup: $(STAMP)

$(STAMP): pyproject.toml .ci/install
	$(PYTHON) .ci/install $(VENV)
	@touch $@

demo: $(STAMP)
	$(BIN)/vocabforge demo --output $(DEMO_OUTPUT)

test: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
