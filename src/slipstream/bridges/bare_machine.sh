#!/bin/sh
# bare_machine.sh TRAINER PARTS OUT [SETTING...]: whole steps of verl's or SkyRL-train's own trainer on a machine with one
# GPU and without a network. TRAINER is verl or skyrl.
#
# It needs Python 3.12 with torch 2.11 for CUDA 13, this checkout as the working folder, and PARTS as
# `scripts/parts.sh PARTS TRAINER` packs it. Three steps, then a second start that goes on from the last checkpoint for a
# fourth; `slipstream.bridges.step_report` checks them. OUT gets report.json, steps.jsonl and a log of each start. Nothing
# is written elsewhere but below $WORK and by Ray below /tmp/ray. SETTINGs are for both starts, as for
# slipstream.bridges.TRAINER.main.
set -eu
trainer=$1
case "$trainer" in
  verl | skyrl) ;;
  *) echo "bare_machine.sh: there is no trainer $trainer: name verl or skyrl" >&2 && exit 2 ;;
esac
parts=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
shift 3
work=${WORK:-/tmp/slipstream-$trainer}
if [ ! -f "$work/ready" ]; then
  mkdir -p "$work"
  cat "$parts/$trainer".[0-9]* | tar -C "$work" -xzf -
  # Ray gives its first processes fifteen seconds.
  python3 -m compileall -q -j 0 "$work/packages" > /dev/null || true
  touch "$work/ready"
fi

# Ray and vLLM start processes of their own, which find packages and settings by these.
export PYTHONPATH="$work/packages:$PWD/src" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0
export SLIPSTREAM_HOME="$work/home" HF_HOME="$work/hf" TRITON_CACHE_DIR="$work/triton" VLLM_CACHE_ROOT="$work/vllm"
export HYDRA_FULL_ERROR=1
# A machine without a network has the loopback interface alone.
export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo VLLM_HOST_IP=127.0.0.1 RAY_agent_register_timeout_ms=300000
unset RAY_ADDRESS
case "$trainer" in
  # verl 0.9.1 was made for vLLM 0.24, whose model runner this is: it sets weights and masks logits inside it.
  verl) export VLLM_USE_V2_MODEL_RUNNER=0 ;;
  # SkyRL-train writes to a file of its own what its workers and vLLM say, unless this is set, and leaves it to Ray how
  # much memory its object store takes.
  skyrl) export SKYRL_DUMP_INFRA_LOG_TO_STDOUT=1 RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES=4000000000 ;;
esac

# start NAME STEPS SETTING...: train up to so many steps.
start() {
  name=$1
  steps=$2
  shift 2
  case "$trainer" in
    verl) set -- +setup=one_gpu "actor_rollout_ref.model.path=$work/model" "trainer.default_local_dir=$work/run" \
      "trainer.total_training_steps=$steps" "$@" ;;
    skyrl) set -- config=one_gpu "trainer.policy.model.path=$work/model" "trainer.export_path=$work/run" \
      "trainer.max_training_steps=$steps" "$@" ;;
  esac
  began=$(date +%s)
  result=done
  python3 -m "slipstream.bridges.$trainer.main" "$@" > "$out/$name.log" 2>&1 || result="failed, see $name.log"
  echo "$name: $result after $(($(date +%s) - began)) s"
}

start first 3 "$@"
start resumed 4 "$@"
cp "$work/run/steps.jsonl" "$out/steps.jsonl"
python3 -m slipstream.bridges.step_report "$work/run" > "$out/report.json" 2> "$out/report.log" ||
  echo "report: a check failed, see report.json"
