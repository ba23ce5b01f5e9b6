"""llama.cpp's own OpenAI-compatible server, started in this process through xllamacpp.

Run as ``python llama_cpp_server.py --model FILE --port N ...`` in the ``llama.cpp`` environment. Answers on 127.0.0.1:
/health, /metrics, /slots, /v1/models, /v1/completions, /v1/chat/completions. SIGTERM and SIGINT end it.

``--set NAME=VALUE`` sets any other parameter by llama.cpp's own name (``common_params``), for example ``n_batch=1024``,
``flash_attn_type=enabled``, ``cache_type_k=q8_0``.

``--omp-wait-policy``: how llama.cpp's threads wait for each other. ``active`` (spinning) is about a fifth faster on
cores of its own and collapses beside other programs: 239 against 17 ms a token with one to two busy cores of two
(measured, Q8_0 demo model). ``auto`` looks at how busy the cores are at start: ``active`` where they are idle.
"""

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

BUSY_SHARE = 0.1  # of our cores in use by others, from which spinning costs more than it gains
SAMPLE_S = 0.5


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True, help="the model's name in requests")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--n-parallel", type=int, default=1, help="slots: sequences served at the same time")
    parser.add_argument("--n-ctx", type=int, required=True, help="KV cache in tokens, all slots together")
    parser.add_argument("--n-threads", type=int, required=True)
    parser.add_argument("--omp-wait-policy", choices=["auto", "active", "passive"], default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args()


def busy_ticks(cores):
    """Clock ticks that these cores have worked since boot (all but idle and waiting for disks)."""
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            numbers = [int(value) for value in values[:8]]
            ticks += sum(numbers) - numbers[3] - numbers[4]
    return ticks


def busy_share():
    """Share of our cores that other programs use now; ``None`` where the system does not tell."""
    if not Path("/proc/stat").exists():
        return None
    cores = os.sched_getaffinity(0)
    before, started = busy_ticks(cores), time.monotonic()
    time.sleep(SAMPLE_S)
    worked = (busy_ticks(cores) - before) / os.sysconf("SC_CLK_TCK")
    return worked / (time.monotonic() - started) / len(cores)


def set_wait_policy(wanted):
    """Into the environment, where OpenMP reads it when llama.cpp is loaded. The user's own setting wins."""
    if "OMP_WAIT_POLICY" in os.environ or wanted == "active":
        return
    share = None if wanted == "passive" else busy_share()
    if wanted == "passive" or (share is not None and share > BUSY_SHARE):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if share is not None:
        policy = "passive" if share > BUSY_SHARE else "active"
        print(f"threads wait {policy}ly: other programs use {share:.0%} of our cores", flush=True)


def converted(name, old, text):
    """``text`` as the type that the parameter has."""
    if isinstance(old, bool):
        if text.lower() not in ("true", "false", "1", "0", "on", "off"):
            sys.exit(f"llama.cpp parameter {name}: {text!r} is not true or false")
        return text.lower() in ("true", "1", "on")
    if isinstance(old, int) and not hasattr(old, "name"):
        return int(text)
    if isinstance(old, float):
        return float(text)
    kind = type(old)
    if hasattr(kind, "__members__"):
        for member in kind:
            if member.name.lower() == text.lower() or member.name.lower().endswith("_type_" + text.lower()):
                return member
        sys.exit(f"llama.cpp parameter {name}: {text!r} is none of {', '.join(m.name for m in kind)}")
    return text


def parameters(arguments):
    """llama.cpp's parameters: fixed ones for a measured, bounded server, then what was asked for."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.model_alias = {arguments.alias}
    params.hostnames = [arguments.host]
    params.port = arguments.port
    params.n_parallel = arguments.n_parallel
    params.n_ctx = arguments.n_ctx
    params.cpuparams.n_threads = arguments.n_threads
    params.cpuparams_batch.n_threads = arguments.n_threads
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.fit_params = False  # would change the context behind the caller's back
    params.offline = True
    params.ui = False
    for setting in arguments.set:
        name, _, text = setting.partition("=")
        if name.startswith("_") or not hasattr(params, name):
            sys.exit(f"llama.cpp has no parameter {name!r}")
        setattr(params, name, converted(name, getattr(params, name), text))
    return params


def main():
    arguments = parse_arguments()
    set_wait_policy(arguments.omp_wait_policy)
    import xllamacpp  # only now: it brings OpenMP along

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = xllamacpp.Server(parameters(arguments))
    except RuntimeError as error:
        sys.exit(f"llama.cpp did not start: {error}")
    print(f"listening on {server.listening_address}", flush=True)
    while not stop.wait(3600):
        pass
    # Destroying the server waits for running requests; the clients are gone by now, so leave at once.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
