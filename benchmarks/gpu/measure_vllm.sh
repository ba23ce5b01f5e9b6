#!/usr/bin/env bash
# Serves a model folder with vLLM on this machine's GPU and load-tests it with our own client; everything that came out
# is left in OUT: server log, metrics page before and after, results with every request, and what the machine is.
#   benchmarks/gpu/measure_vllm.sh MODEL_DIR OUT NAME [vllm flags …]
# With --load-format dummy the weights are random: speed is real, text is not.
set -uo pipefail
model=$1 out=$2 name=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0
mkdir -p "$out"
port=8123
{
    date -u +%FT%TZ
    python3 --version
    python3 -c 'import vllm, torch; print("vllm", vllm.__version__, "torch", torch.__version__)' 2>/dev/null | tail -1
    nvidia-smi --query-gpu=name,memory.total,driver_version,power.limit,clocks.max.sm --format=csv
    echo "vllm serve MODEL --served-model-name bench $*"
} >"$out/$name-host.txt" 2>&1
started=$(date +%s)
setsid python3 -m vllm.entrypoints.cli.main serve "$model" --served-model-name bench --host 127.0.0.1 --port $port "$@" \
    >"$out/$name-server.log" 2>&1 &
server=$!
trap 'kill -TERM -$server 2>/dev/null; sleep 3; kill -KILL -$server 2>/dev/null' EXIT
until curl -sf "http://127.0.0.1:$port/health" >/dev/null; do
    kill -0 $server 2>/dev/null || { tail -30 "$out/$name-server.log"; exit 4; }
    [ $(($(date +%s) - started)) -gt 300 ] && { echo "not ready"; exit 4; }
    sleep 1
done
echo "ready after $(($(date +%s) - started)) s" | tee -a "$out/$name-host.txt"
nvidia-smi --query-gpu=memory.used --format=csv >>"$out/$name-host.txt"
python3 -m model_optimizer bench "http://127.0.0.1:$port" --traffic "$here/h200-traffic.yaml" \
    --save "$out/$name-results.json" 2>&1 | tee "$out/$name-bench.txt"
curl -s "http://127.0.0.1:$port/metrics" | grep -E "^vllm:(num_preemptions|prefix_cache|kv_cache_usage|request_success)" >"$out/$name-metrics.txt"
nvidia-smi --query-gpu=memory.used,power.draw,temperature.gpu,clocks.sm --format=csv >>"$out/$name-host.txt"
gzip -f "$out/$name-results.json"
