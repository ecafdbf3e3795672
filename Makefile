# Everything sets itself up: a virtual environment in .venv, made once and again when pyproject.toml changes.

PYTHON ?= python3
BIN := .venv/bin
# Small tensors: one thread per process, and a process per core.
WORKERS ?= 2

.PHONY: demo test test-full test-federation bench results cards docs lint clean

demo: .venv/ready
	$(BIN)/normfed demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not full"

test-full: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/python -m mkdocs build --strict

bench: .venv/ready
	$(BIN)/normfed bench

results: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m normfed.tables

cards: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m normfed.tables cards

test-federation:
	@echo "make $@: not yet" && false

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs
