#!/bin/sh
# bare_machine.sh PARTS OUT [SETTING...]: whole steps of verl's own trainer on a machine with one GPU and without a network.
#
# It needs Python 3.12 with torch 2.11 for CUDA 13, this checkout as the working folder, and PARTS as
# `scripts/parts.sh PARTS verl` packs it. Three steps, then a second start that goes on from the last checkpoint for a
# fourth; `slipstream.bridges.verl.report` checks them. OUT gets report.json, steps.jsonl and a log of each start. Nothing
# is written elsewhere but below $WORK and by Ray below /tmp/ray. SETTINGs are for both starts, as for
# slipstream.bridges.verl.main.
set -eu
parts=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
work=${WORK:-/tmp/slipstream-verl}
if [ ! -f "$work/ready" ]; then
  mkdir -p "$work"
  cat "$parts"/verl.[0-9]* | tar -C "$work" -xzf -
  # Ray gives its first processes fifteen seconds.
  python3 -m compileall -q -j 0 "$work/packages" > /dev/null || true
  touch "$work/ready"
fi

# Ray and vLLM start processes of their own, which find packages and settings by these.
export PYTHONPATH="$work/packages:$PWD/src" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0
export SLIPSTREAM_HOME="$work/home" TRITON_CACHE_DIR="$work/triton" VLLM_CACHE_ROOT="$work/vllm" HYDRA_FULL_ERROR=1
# verl 0.9.1 was made for vLLM 0.24, whose model runner this is: it sets weights and masks logits inside it.
export VLLM_USE_V2_MODEL_RUNNER=0
# A machine without a network has the loopback interface alone.
export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo VLLM_HOST_IP=127.0.0.1 RAY_agent_register_timeout_ms=300000
unset RAY_ADDRESS

# start NAME STEPS SETTING...: train up to so many steps.
start() {
  name=$1
  steps=$2
  shift 2
  began=$(date +%s)
  result=done
  python3 -m slipstream.bridges.verl.main +setup=one_gpu "actor_rollout_ref.model.path=$work/model" \
    "trainer.default_local_dir=$work/run" "trainer.total_training_steps=$steps" "$@" > "$out/$name.log" 2>&1 ||
    result="failed, see $name.log"
  echo "$name: $result after $(($(date +%s) - began)) s"
}

start first 3 "$@"
start resumed 4 "$@"
cp "$work/run/steps.jsonl" "$out/steps.jsonl"
python3 -m slipstream.bridges.verl.report "$work/run" > "$out/report.json" 2> "$out/report.log" ||
  echo "report: a check failed, see report.json"
