"""What an installed llama.cpp (xllamacpp) says about itself: parameters with defaults, tensor types, build.

Run as ``python llama_cpp_facts.py payload.json`` in the ``llama.cpp`` environment. Payload: ``result`` (file to write).
"""

import importlib.metadata
import json
import sys
from pathlib import Path

import xllamacpp

PLATFORMS = {"CUDA": "cuda", "ROCM": "rocm", "HIP": "rocm", "SYCL": "xpu"}


def write_json(path, value):
    """Last of all, and by rename: a file that exists is complete."""
    part = Path(f"{path}.part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


def plain(value):
    """A parameter as JSON, with its choices; objects give ``None``: they hold more parameters."""
    if hasattr(type(value), "__members__"):
        return short(value), [short(member) for member in type(value) if not member.name.endswith("_COUNT")]
    if isinstance(value, (bool, int, float, str)):
        return value, None
    return None, None


def short(member):
    """``GGML_TYPE_Q8_0`` of ``ggml_type`` → ``q8_0``."""
    return member.name.removeprefix(f"{type(member).__name__.upper()}_").lower()


def parameters(holder, prefix=""):
    """The parameters of ``CommonParams`` by llama.cpp's own names, those of the processor under ``cpuparams.``."""
    found = []
    for name in dir(holder):
        if name.startswith("_"):
            continue
        value = getattr(holder, name)
        if callable(value):
            continue
        default, choices = plain(value)
        if default is not None:
            found.append({"flag": prefix + name, "aliases": [], "field": name, "default": default, "choices": choices})
        elif name in ("cpuparams", "speculative"):
            found += parameters(value, f"{name}.")
    return found


def main():
    payload = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    devices = [str(device["name"]) for device in xllamacpp.get_device_info()]
    platforms = [PLATFORMS[key] for device in devices for key in PLATFORMS if device.upper().startswith(key)]
    types = [short(member) for member in xllamacpp.ggml_type]
    build = ", ".join(f"{key} {value}" for key, value in xllamacpp.BUILD_INFO.items())
    write_json(
        payload["result"],
        {
            "version": importlib.metadata.version("xllamacpp"),
            "build": f"{build}; {xllamacpp.get_system_info().strip(' |')}",
            "platform": platforms[0] if platforms else "cpu",
            "dtypes": [],
            "flags": parameters(xllamacpp.CommonParams()),
            "methods": {name: {"min_capability": None, "activation_dtypes": None} for name in types if name != "count"},
            "deprecated_methods": [],
            "variants": {},
            "kv_cache_dtypes": [],
            "architectures": [],
        },
    )


if __name__ == "__main__":
    main()
