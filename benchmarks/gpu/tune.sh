#!/usr/bin/env bash
# Tunes vLLM on this machine's GPU for an 8B of Qwen3-8B's shape (weights without meaning) under the founding traffic mix:
#   benchmarks/gpu/tune.sh CONFIG_FOLDER OUT VLLM_PYTHON SLO [tune's options …]
# The default in bf16 is the reference; candidates are bf16 and FP8 (quantized while loading). Run again, it goes on.
# Everything that came out is left in OUT: terminal output, manifest, report, logs, traces, what the machine is.
set -uo pipefail
config=$1 out=$2 vllm=$3 slo=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0
export MODEL_OPTIMIZER_HOME=${MODEL_OPTIMIZER_HOME:-$(mktemp -d)}
mkdir -p "$out"
[ -d "$MODEL_OPTIMIZER_HOME/model" ] || python3 "$here/sparse_model.py" "$config" "$MODEL_OPTIMIZER_HOME/model" || exit 1
cat >"$MODEL_OPTIMIZER_HOME/traffic.yaml" <<YAML
id: founding-mix-h200
prompt_tokens: {128: 0.80, 512: 0.15, 2048: 0.05}
output_tokens: 128
loads: [64]
min_requests_per_load: 200
max_requests_per_load: 4000
seed: 1
YAML
cat >"$MODEL_OPTIMIZER_HOME/request.yaml" <<YAML
model: $MODEL_OPTIMIZER_HOME/model
schemes: [bf16, fp8]
max_model_len: 4096
validate_accuracy: false
tools: {vllm: {python: $vllm}}
YAML
{
    date -u +%FT%TZ
    nvidia-smi --query-gpu=name,memory.total,driver_version,power.limit,clocks.max.sm --format=csv
    echo "model-optimize tune request.yaml --traffic traffic.yaml --slo $slo --set load_format=dummy $*"
    cat "$MODEL_OPTIMIZER_HOME/request.yaml" "$MODEL_OPTIMIZER_HOME/traffic.yaml"
} >>"$out/host.txt" 2>&1
timeout "${LIMIT_S:-570}" python3 -m model_optimizer tune "$MODEL_OPTIMIZER_HOME/request.yaml" \
    --traffic "$MODEL_OPTIMIZER_HOME/traffic.yaml" --slo "$slo" --set load_format=dummy "$@" >>"$out/tune.txt" 2>&1
echo "exit $?" >>"$out/tune.txt"
tar czf "$out/runs.tgz" -C "$MODEL_OPTIMIZER_HOME" runs
(cd "$MODEL_OPTIMIZER_HOME" && find objects -name 'traces.jsonl.gz' -print0 | tar czf "$out/traces.tgz" --null -T -)
tail -60 "$out/tune.txt"
