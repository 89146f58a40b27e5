# Every target sets up what it needs: python3 (3.11 or newer) and make are enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test promises bridges sandboxes lint types check lock lock-bridges clean

demo: .venv/.installed  ## a small model learns a multi-turn tool task by reinforcement learning
	$(BIN)/slipstream train quickstart

test: .venv/.installed
	$(BIN)/pytest

promises: .venv/.installed  ## the dispatcher's promises on 10,000 schedules, on virtual time
	SLIPSTREAM_PROMISES=10000 $(BIN)/pytest tests/dispatch/test_promises.py

bridges: .venv-bridges/.installed  ## compare with other trainers' own code, in an environment of its own
	.venv-bridges/bin/pytest tests/bridges

sandboxes: .venv/.installed  ## the sandbox contract and hostile code on real containers; needs root, podman, debootstrap
	sh scripts/oci_image.sh
	SLIPSTREAM_OCI=1 $(BIN)/pytest tests/sandbox_oci

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/mypy

check: lint types test

.venv/.installed: requirements.lock pyproject.toml scripts/setup.sh scripts/torch.sh
	PYTHON=$(PYTHON) sh scripts/setup.sh

.venv-bridges/.installed: requirements-bridges.txt pyproject.toml scripts/bridges.sh scripts/torch.sh
	PYTHON=$(PYTHON) sh scripts/bridges.sh

lock: .venv/.installed  ## resolve the dependencies anew; torch is left out, see requirements-torch.in
	$(BIN)/pip install --quiet uv
	echo "torch; sys_platform == 'none'" | $(BIN)/uv pip compile pyproject.toml requirements-torch.in --extra dev \
	  --override - --no-emit-package torch --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --upgrade --output-file requirements.lock

lock-bridges: .venv/.installed  ## the same for `make bridges`; torch is left out, see requirements-torch.in
	$(BIN)/pip install --quiet uv
	echo "torch; sys_platform == 'none'" | $(BIN)/uv pip compile pyproject.toml requirements-bridges.in --override - \
	  --no-emit-package torch --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --no-annotate --upgrade --output-file requirements-bridges.txt

clean:
	rm -rf .venv .venv-bridges .mypy_cache .pytest_cache .ruff_cache .hypothesis
