#!/usr/bin/env bash
# Makes vLLM fail on this machine's GPU in three ways that people meet, and keeps the logs:
#   benchmarks/gpu/provoke.sh MODEL_DIR OUT        (weights are filled with random numbers)
#   out-of-memory: another program holds most of the GPU's memory while a context of 4096 is asked for
#   kv-cache-small: too little memory is left beside the weights for one sequence of 40960 tokens
#   wrong-quantization: AWQ is asked for and the checkpoint is plain bfloat16
set -uo pipefail
model=$1 out=$2
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0
mkdir -p "$out"
serve() {
    local name=$1 port=$2
    shift 2
    echo "vllm serve MODEL --load-format dummy $*" >"$out/$name.log"
    setsid timeout -k 3 "${LIMIT_S:-85}" python3 -m vllm.entrypoints.cli.main serve "$model" --load-format dummy \
        --host 127.0.0.1 --port "$port" "$@" >>"$out/$name.log" 2>&1
    echo "exit $?" >>"$out/$name.log"
}
serve wrong-quantization 8131 --quantization awq --max-model-len 4096 &
serve kv-cache-small 8132 --gpu-memory-utilization 0.14 --max-model-len 40960 --enforce-eager &
wait
python3 -c 'import time, torch; held = torch.empty(int(128 * 2**30), dtype=torch.uint8, device="cuda"); print("holding"); time.sleep(80)' &
holder=$!
sleep 6
LIMIT_S=60 serve out-of-memory 8133 --gpu-memory-utilization 0.05 --max-model-len 4096 --enforce-eager
kill $holder
wait
tail -n 3 "$out"/*.log | cut -c1-200
