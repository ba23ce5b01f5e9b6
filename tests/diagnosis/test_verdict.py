"""The first cause, the doubts, the facts and the numbers."""

import json

import pytest

from model_optimizer.diagnosis.anchors import anchors
from model_optimizer.diagnosis.facts import derive, fact_lines, fill
from model_optimizer.errors import SpecInvalid

CHILD = """(EngineCore_0 pid=12) INFO [core.py:70] Initializing a V1 LLM engine
(Worker_TP0 pid=31) INFO Loading weights
(Worker_TP1 pid=32) ERROR Traceback (most recent call last):
(Worker_TP0 pid=31) INFO still loading
(Worker_TP1 pid=32) ERROR   File "weight_utils.py", line 614, in safetensors_weights_iterator
(Worker_TP1 pid=32) ERROR safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer
(EngineCore_0 pid=12) ERROR Exception: WorkerProc initialization failed due to an exception in a background process.
(EngineCore_0 pid=12) ERROR TimeoutError: RPC call to load_model timed out.
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."""


def test_first_cause_of_interleaved_processes(ask):
    found = ask(CHILD)
    assert [f.cause for f in found.findings] == ["safetensors-truncated"]
    assert found.findings[0].evidence.line == 6
    assert "scheduler-or-engine-timeout" in [f.cause for f in found.considered]  # only a symptom here


def test_exception_chain_goes_to_the_root(ask):
    log = """Traceback (most recent call last):
ImportError: libcudart.so.12: cannot open shared object file: No such file or directory

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
ValueError: Model architectures ['LlamaForCausalLM'] failed to be inspected. Please check the logs for more details."""
    found = ask(log)
    assert found.findings[0].cause == "wheel-cuda-major-mismatch"
    assert found.findings[0].evidence.line == 2


def test_a_timeout_after_an_unknown_error_is_no_cause(ask):
    log = "TypeError: forward() missing 1 required argument\nTimeoutError: RPC call to execute_model timed out."
    found = ask(log)
    assert found.verdict == "unknown"
    assert found.first_error is not None and found.first_error.line == 1
    assert ask("TimeoutError: RPC call to execute_model timed out.").verdict == "cause"


def test_a_crash_comes_before_a_warning_of_speed(ask):
    log = """WARNING scheduler.py] Sequence group 2 is preempted by PreemptionMode.RECOMPUTE mode
torch.AcceleratorError: CUDA error: an illegal memory access was encountered"""
    assert [f.cause for f in ask(log).findings] == ["illegal-memory-access", "kv-cache-preemption"]


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        ({}, None),
        ({"container": "docker run without --gpus"}, "container-gpu-not-passed"),
        ({"mig": "enabled"}, "mig-mode-mismatch"),
        ({"env": {"CUDA_VISIBLE_DEVICES": 7}}, "cuda-visible-devices-wrong"),
        ({"platform": "Jetson Orin"}, "jetson-generic-torch-wheel"),
    ],
)
def test_facts_decide_what_a_message_means(facts, want, ask):
    found = ask("RuntimeError: No CUDA GPUs are available", facts)
    if want is None:
        assert found.verdict == "unknown"
        assert any("CUDA_VISIBLE_DEVICES" in question for question in found.ask_for)
    else:
        assert found.findings[0].cause == want


def test_unknown_error_asks_for_more(ask):
    found = ask("INFO fine\nSomethingError: the flux is out of phase\nINFO bye")
    assert (found.verdict, found.findings) == ("unknown", ())
    assert found.first_error is not None and found.first_error.text.startswith("SomethingError")
    assert any("whole log" in question for question in found.ask_for)


def test_harmless_lines_beside_a_cause_are_not_blamed(ask):
    log = """WARNING [custom_all_reduce.py] Custom allreduce is disabled because it's not supported on PCIe-only GPUs.
NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute \
capability 7.5."""
    found = ask(log)
    assert [(f.cause, f.evidence.line) for f in found.findings] == [("bf16-unsupported-gpu", 3)]
    assert "Tesla T4" in found.findings[0].fix[0]


def test_numbers_fill_the_fix(ask):
    log = (
        "ValueError: To serve at least one request with the model's max seq len (32768), (8.00 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (2.50 GiB)."
    )
    finding = ask(log).findings[0]
    assert finding.numbers["needed_gib"] == "8.00"
    assert "--max-model-len 10240" in finding.fix[0]  # 32768 · 2.5 / 8
    heads = ask("ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).")
    assert "1, 2, 4, 7, 14" in heads.findings[0].fix[0]
    port = ask("ERROR: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8123): address already in use")
    assert ":8123" in port.findings[0].fix[0]
    assert "{{" not in json.dumps(port.contract())


def test_contract(ask):
    found = ask("OSError: [Errno 28] No space left on device").contract()
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"verdict", "findings", "ask_for"}
    (finding,) = found["findings"]
    assert set(finding) == {"cause", "confidence", "evidence", "fix", "verify"}
    assert finding["evidence"] == {"line": 1, "text": "OSError: [Errno 28] No space left on device"}
    assert 0.5 <= finding["confidence"] <= 1
    assert finding["fix"] and finding["verify"]


def test_no_fix_holds_an_open_place(ask, cases):
    for case in cases:
        for finding in ask(case["log"], case["environment"], case["engine"]).findings:
            assert not any(
                "{{" in step or "}}" in step for step in (*finding.fix, *finding.verify) if ".State" not in step
            )


def test_fill_and_derive():
    assert fill("lower to {{fits|a length that fits}}", {}) == "lower to a length that fits"
    assert fill("pid {{pid}}", {}) == "pid <pid>"
    assert fill("-f '{{.State.OOMKilled}}'", {}) == "-f '{{.State.OOMKilled}}'"
    assert derive({"free_gib": "10.5", "total_gib": "23.65"})["utilization"] == "0.43"
    assert derive({"fits": "9000", "kv_tokens": "5904"})["fits"] == "9000"  # what the log states itself is kept
    assert derive({"workspace_bytes": "1170309120"})["workspace_mib"] == "1536"
    assert derive({"heads": "not a number"}) == {"heads": "not a number"}


def test_facts_are_lines():
    facts = {"gpu": "RTX 3090", "env": {"A": 1}, "gpus": ["a", "b"], "odd": None}
    assert fact_lines(facts, "vllm") == ("engine: vllm", "gpu: RTX 3090", "env.A: 1", "gpus: a, b", "odd")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"Driver/library version mismatch", {"library"}),
        (r"\b(?:CUDA|HIP)\b.{0,20}out of memory|OutOfMemoryError:", {"cuda", "hip", "outofmemoryerror"}),
        (r"\bcalibrat(?:ion|ing)\b", {"calibration", "calibrating"}),
        (r"total capac(?:i)?ty of", {"capacity", "capacty"}),
        (r"(?#errno)\bErrno 2[48]\b|没有空间", {"errno", "没有空间"}),
        (r"out[-_ ]of\s+sockets", {"sockets"}),
    ],
)
def test_anchors(pattern, words):
    assert anchors(pattern) == words


def test_a_pattern_without_a_word_is_refused():
    with pytest.raises(SpecInvalid, match="no word to look for"):
        anchors(r"\w+Error\d*")
