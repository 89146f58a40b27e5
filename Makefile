# Every target sets up what it needs: python3 (3.11 or newer) and make are enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types check lock clean

demo: .venv/.installed  ## 64 tasks solved by a scripted agent in real sandboxes
	$(BIN)/slipstream eval demo

test: .venv/.installed
	$(BIN)/pytest

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/mypy

check: lint types test

.venv/.installed: requirements.lock pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) sh scripts/setup.sh

lock: .venv/.installed  ## resolve the dependencies anew
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate --upgrade --output-file requirements.lock

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
