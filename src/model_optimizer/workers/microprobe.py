"""How fast this machine's memory and matrix units really are, in a few seconds.

Run as ``python microprobe.py payload.json`` with any Python that has torch. Payload: ``result`` (file to write),
``device`` (``auto``, ``cpu`` or ``cuda``), ``seconds`` (for everything but torch's import, default 10), ``bf16`` and
``int8`` (whether the CPU multiplies them natively; a GPU is asked itself). The result holds the device and one entry a
rate: name, unit, median, quartiles and number of repeats, and how it was measured; what could not be measured is
in ``skipped`` with the reason. Rates: bytes a second read and written together; operations a second, 2·m·n·k a product.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

GPU_SHAPES = ((16, 8192, 8192), (512, 8192, 8192), (8192, 8192, 8192))
CPU_SHAPES = ((1, 4096, 4096), (32, 2048, 2048), (512, 2048, 2048))
FIELDS = (
    "power.limit", "power.default_limit", "power.max_limit", "power.draw", "clocks.sm", "clocks.max.sm",
    "temperature.gpu", "pcie.link.gen.current", "pcie.link.width.current", "pcie.link.gen.max", "pcie.link.width.max",
)  # fmt: skip
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", None)  # the new name, the old, none at all
COPY_BYTES = 256 << 20
MIN_REPEATS, MAX_REPEATS = 3, 50


def progress(done, total, what):
    print("@progress " + json.dumps({"done": done, "total": total, "what": what}), flush=True)


def write_json(path, value):
    """Last of all, and by rename: a file that exists is complete."""
    part = Path(f"{path}.part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


class Clock:
    """Times one call of a function, in seconds: events on a GPU, the wall clock on a CPU."""

    def __init__(self, torch, cuda):
        self.torch, self.cuda = torch, cuda

    def __call__(self, work):
        if not self.cuda:
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def repeats(self, work, budget_s):
        """Seconds of each repeat, after two that warm up (allocation, kernel choice, clocks)."""
        self(work)
        once = max(self(work), 1e-7)
        inner = max(1, int(2e-3 / once)) if self.cuda else 1  # short kernels in groups: launching must not be the time
        until = time.perf_counter() + budget_s
        taken = []
        while len(taken) < MIN_REPEATS or (len(taken) < MAX_REPEATS and time.perf_counter() < until):
            taken.append(self(lambda: times(inner, work)) / inner)
        return taken


def times(count, work):
    """Call it that often and keep nothing of what it gives."""
    for _ in range(count):
        work()


class Report:
    """The entries of the result."""

    def __init__(self):
        self.values, self.skipped = [], []

    def add(self, name, unit, amount, seconds, how, **more):
        rates = [amount / s for s in seconds]
        low, _, high = statistics.quantiles(rates, n=4, method="inclusive")
        self.values.append(
            {"name": name, "unit": unit, "median": statistics.median(rates), "low": low, "high": high,
             "repeats": len(rates), "how": how, **more}
        )  # fmt: skip

    def skip(self, name, why):
        self.skipped.append({"name": name, "why": " ".join(str(why).split())[:200]})


def memory(torch, device, clock, report, budget_s):
    """Copy, and triad a = b + s·c as STREAM has it, over arrays many times larger than any cache."""
    if clock.cuda:
        free, _ = torch.cuda.mem_get_info()
        numel = min(1 << 28, int(free / 16) // 4)  # three arrays of at most 1 GiB, within 3/16 of what is free
    else:
        numel = 1 << 24
    a, b, c = (torch.ones(numel, dtype=torch.float32, device=device) for _ in range(3))
    size = numel * 4
    how = f"torch, arrays of {size >> 20} MiB"
    report.add("device memory, copy", "B/s", 2 * size, clock.repeats(lambda: a.copy_(b), budget_s / 2),
               f"{how}, read and written bytes", kind="bandwidth")  # fmt: skip
    report.add("device memory, triad", "B/s", 3 * size,
               clock.repeats(lambda: torch.add(b, c, alpha=1.5, out=a), budget_s / 2),
               f"{how}, a = b + s*c", kind="bandwidth")  # fmt: skip


def operands(torch, device, dtype, m, n, k):
    """Two matrices of that type, and the product as LLM kernels run it (weights stored n × k)."""
    if dtype == "int8":
        x = torch.randint(-8, 8, (max(m, 32), k), dtype=torch.int8, device=device)  # the kernel wants more than 16 rows
        w = torch.randint(-8, 8, (n, k), dtype=torch.int8, device=device)
        return max(m, 32), lambda: torch._int_mm(x, w.t())
    if dtype == "fp8":
        x = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
        w = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
        one = torch.tensor(1.0, device=device)
        return m, lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    kind = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    x, w = torch.randn(m, k, dtype=kind, device=device), torch.randn(n, k, dtype=kind, device=device)
    return m, lambda: torch.nn.functional.linear(x, w)


def matrices(torch, device, clock, report, dtypes, shapes, budget_s):
    """The rate of x·wᵀ for a few rows (an answer's step), some (a batch) and many (a prompt)."""
    each_s = budget_s / max(1, len(dtypes) * len(shapes))
    for dtype in dtypes:
        for m, n, k in shapes:
            name = f"matrix {dtype}, {m} x {n} x {k}"
            try:
                rows, work = operands(torch, device, dtype, m, n, k)
                seconds = clock.repeats(work, each_s)
            except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
                report.skip(name, str(error).splitlines()[0] if str(error) else type(error).__name__)
                break
            how = "torch, x (m x k) times w (n x k) transposed"
            how += ", TF32 off" if dtype == "fp32" and clock.cuda else ""
            report.add(f"matrix {dtype}, {rows} x {n} x {k}", "FLOP/s", 2 * rows * n * k, seconds, how,
                       kind="matrix", dtype=dtype, shape=[rows, n, k])  # fmt: skip


def transfers(torch, clock, report, budget_s):
    """Between host and device, from memory that the driver can reach at once (pinned) and that it cannot."""
    there = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    for kind in ("pinned", "pageable"):
        try:
            here = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=kind == "pinned")
        except RuntimeError as error:
            report.skip(f"host and device, {kind}", error)
            continue
        here.fill_(1)
        for name, work in (
            ("to the device", lambda h=here: there.copy_(h)),
            ("from the device", lambda h=here: h.copy_(there)),
        ):
            seconds = clock.repeats(work, budget_s / 4)
            report.add(f"copy {name}, {kind}", "B/s", COPY_BYTES, seconds, f"torch, {COPY_BYTES >> 20} MiB",
                       kind="transfer", pinned=kind == "pinned")  # fmt: skip


class Watch(threading.Thread):
    """Asks nvidia-smi while the GPU works: clocks and power at rest say nothing."""

    def __init__(self, uuid):
        super().__init__(daemon=True)
        self.uuid, self.readings, self.over = uuid, [], threading.Event()

    def read(self, reason):
        """One reading, or ``None`` where nvidia-smi fails: it refuses the whole question for one unknown field."""
        fields = [*FIELDS, *([reason] if reason else [])]
        ask = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                ask + (["-i", self.uuid] if self.uuid else []), capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        rows = done.stdout.splitlines() if done.returncode == 0 else []
        row = [value.strip() for value in rows[0].split(",")] if rows else []
        if len(row) != len(fields):
            return None
        return dict(zip([*FIELDS, "reasons"], row, strict=False))

    def run(self):
        for reason in REASONS:
            first = self.read(reason)
            if first is not None:
                break
        else:
            return
        while not self.over.is_set():
            reading = self.read(reason)
            if reading is not None:
                self.readings.append(reading)
            self.over.wait(0.3)

    def stop(self):
        """The reading with the highest power draw: the one under full load."""
        self.over.set()
        self.join(6)

        def draw(reading):
            try:
                return float(reading["power.draw"])
            except ValueError:
                return -1.0

        return max(self.readings, key=draw, default={})


def gpu(torch, report, seconds):
    properties = torch.cuda.get_device_properties(0)
    capability = torch.cuda.get_device_capability(0)
    uuid = str(getattr(properties, "uuid", "") or "")
    watch = Watch(f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid)
    watch.start()
    torch.backends.cuda.matmul.allow_tf32 = False
    clock = Clock(torch, True)
    dtypes = ["fp32", "fp16", *(["bf16"] if capability >= (8, 0) else []), *(["int8"] if capability >= (7, 5) else []),
              *(["fp8"] if capability >= (8, 9) else [])]  # fmt: skip
    progress(0, 3, "memory bandwidth")
    memory(torch, "cuda", clock, report, seconds * 0.15)
    progress(1, 3, "matrix rates")
    matrices(torch, "cuda", clock, report, dtypes, GPU_SHAPES, seconds * 0.65)
    under_load = watch.stop()
    progress(2, 3, "copies between host and device")
    transfers(torch, clock, report, seconds * 0.2)
    return {
        "kind": "cuda", "name": properties.name, "capability": ".".join(map(str, capability)),
        "multiprocessors": properties.multi_processor_count, "memory_bytes": properties.total_memory,
        "torch": torch.__version__, "cuda": torch.version.cuda, "under_load": under_load,
    }  # fmt: skip


def cpu(torch, report, seconds, payload):
    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    dtypes = ["fp32", *(d for d in ("bf16", "int8") if payload.get(d))]
    progress(0, 1, "matrix rates")
    with torch.inference_mode():
        matrices(torch, "cpu", Clock(torch, False), report, dtypes, CPU_SHAPES, seconds)
    return {"kind": "cpu", "threads": torch.get_num_threads(), "torch": torch.__version__}


def main():
    payload = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import torch

    report, seconds = Report(), float(payload.get("seconds", 10))
    wanted = payload.get("device", "auto")
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        device = gpu(torch, report, seconds)
    else:
        device = cpu(torch, report, seconds, payload)
    write_json(payload["result"], {"device": device, "values": report.values, "skipped": report.skipped})


if __name__ == "__main__":
    main()
