#!/usr/bin/env bash
# The whole pipeline on this machine's GPU with a small random model and interpreters that are there already:
#   benchmarks/gpu/smoke_run.sh TOKENIZER_FOLDER OUT VLLM_PYTHON TRANSFORMERS_PYTHON
# Everything that came out is left in OUT: terminal output, manifest, report, logs.
set -uo pipefail
tokenizer=$1 out=$2 vllm=$3 transformers=$4
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export MODEL_OPTIMIZER_HOME=${MODEL_OPTIMIZER_HOME:-$(mktemp -d)}
mkdir -p "$out"
"$transformers" "$here/random_model.py" "$tokenizer" "$MODEL_OPTIMIZER_HOME/model" || exit 1
cat >"$MODEL_OPTIMIZER_HOME/request.yaml" <<YAML
model: $MODEL_OPTIMIZER_HOME/model
schemes: [fp8, bf16]
traffic: {prompt_tokens: {128: 0.8, 512: 0.2}, output_tokens: 64, loads: [1, 16], seconds_per_load: 5 s}
slo: {tpot_p95: 20 ms, error_rate: 1 %}
accuracy: {eval_tokens: 1024, num_prompts: 2, max_perplexity_rise: 50 %, min_top1_agreement: 0.1, max_kl: 5, max_degenerate: 1}
tools: {vllm: {python: $vllm}, transformers: {python: $transformers}}
YAML
python3 -m model_optimizer plan "$MODEL_OPTIMIZER_HOME/request.yaml" >"$out/plan.txt" 2>&1
timeout "${LIMIT_S:-540}" python3 -m model_optimizer run "$MODEL_OPTIMIZER_HOME/request.yaml" >"$out/run.txt" 2>&1
echo "exit $?" >>"$out/run.txt"
tar czf "$out/run-folder.tgz" -C "$MODEL_OPTIMIZER_HOME" runs
cat "$out/plan.txt" "$out/run.txt"
