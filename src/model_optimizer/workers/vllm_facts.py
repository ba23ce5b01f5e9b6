"""What an installed vLLM says about itself: flags with defaults, quantization methods, KV cache types, architectures.

Run as ``python vllm_facts.py payload.json`` in the ``vllm`` environment. Payload: ``result`` (file to write).
Reads the command line's own parser and the classes behind the methods; loads no model and needs no GPU.
Tells apart what it cannot read from what is not there: a class that does not answer gives ``null``, never a guess.
"""

import argparse
import enum
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
from pathlib import Path

PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")  # newest place first
PARSER_CLASSES = ("vllm.utils.argparse_utils", "vllm.utils")
SCHEMES = "vllm.model_executor.layers.quantization.compressed_tensors.schemes"


def progress(done, total, what):
    print("@progress " + json.dumps({"done": done, "total": total, "what": what}), flush=True)


def write_json(path, value):
    """Last of all, and by rename: a file that exists is complete."""
    part = Path(f"{path}.part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


def first_module(names, attribute):
    """The attribute from the first module that has it: modules move between versions."""
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
            continue
        if hasattr(module, attribute):
            return getattr(module, attribute)
    raise SystemExit(f"none of {', '.join(names)} has {attribute}: this vLLM keeps it elsewhere")


def plain(value):
    """A default as JSON: numbers, text and truth as they are, anything else by its name; ``None`` where unset."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or value is argparse.SUPPRESS:
        return None
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) == 0:
        return "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, float, str)) for item in value):
        return json.dumps(list(value))
    return type(value).__name__  # a configuration object: its fields have flags of their own, or JSON


def flags():
    """Every option of ``vllm serve``, as its parser has it."""
    make = first_module(PARSERS, "make_arg_parser")
    parser = make(first_module(PARSER_CLASSES, "FlexibleArgumentParser")())
    found = []
    for action in parser._actions:
        names = [name for name in action.option_strings if name not in ("-h", "--help")]
        if not names:
            continue
        first = next((name for name in names if name.startswith("--")), names[0])
        choices = None if action.choices is None else [plain(choice) for choice in action.choices]
        found.append(
            {
                "flag": first,
                "aliases": [name for name in names if name != first],
                "field": action.dest,
                "default": plain(action.default),
                "choices": None if choices is None else [choice for choice in choices if choice is not None],
            }
        )
    return found


def capability(number):
    """``89`` → ``8.9``, ``100`` → ``10.0``. vLLM writes 0 or 1 where it does not mind."""
    return f"{number // 10}.{number % 10}" if isinstance(number, int) and number >= 10 else None


def ask(cls, name):
    """What a class says about itself, though some versions declare these as methods of an object that is not built."""
    method = inspect.getattr_static(cls, name, None)
    if isinstance(method, (classmethod, staticmethod)):
        return getattr(cls, name)()
    return getattr(cls, name)(object.__new__(cls))


def asked(cls, name):
    """``ask``, or ``None`` where the class cannot answer without being built or is abstract."""
    try:
        return ask(cls, name)
    except (AttributeError, NotImplementedError, TypeError):
        return None


def methods():
    """Method → minimum capability and activation types."""
    from vllm.model_executor.layers import quantization

    found = {}
    for name in quantization.QUANTIZATION_METHODS:
        cls = quantization.get_quantization_config(name)
        types = asked(cls, "get_supported_act_dtypes")
        found[name] = {
            "min_capability": capability(asked(cls, "get_min_capability")),
            "activation_dtypes": None if types is None else [str(t).removeprefix("torch.") for t in types],
        }
    return found, list(getattr(quantization, "DEPRECATED_QUANTIZATION_METHODS", []))


def variants():
    """Formats of compressed-tensors → minimum capability, by the class: CompressedTensorsW4A8Fp8 → w4a8_fp8."""
    found = {}
    try:
        classes = vars(importlib.import_module(SCHEMES))
    except ModuleNotFoundError:
        return found  # this version keeps them elsewhere
    for name, cls in classes.items():
        if not inspect.isclass(cls) or not name.startswith("CompressedTensorsW"):
            continue
        short = name.removeprefix("CompressedTensors")
        short = re.sub(r"(?<=[0-9A])([A-Z][a-z])", r"_\1", short).lower()
        found[short] = capability(asked(cls, "get_min_capability"))
    return found


def main():
    payload = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    progress(0, 4, "starting vLLM's Python")
    import vllm
    from vllm.platforms import current_platform

    progress(1, 4, "reading the flags of vllm serve")
    options = flags()
    progress(2, 4, "reading quantization methods")
    known, deprecated = methods()
    formats = variants()
    progress(3, 4, "reading model architectures")
    from vllm.model_executor.models.registry import ModelRegistry

    cache = next((option["choices"] for option in options if option["flag"] == "--kv-cache-dtype"), None)
    write_json(
        payload["result"],
        {
            "version": vllm.__version__.split("+")[0],
            "build": vllm.__version__,
            "platform": current_platform.device_type,
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in current_platform.supported_dtypes],
            "flags": options,
            "methods": known,
            "deprecated_methods": deprecated,
            "variants": formats,
            "kv_cache_dtypes": cache or [],
            "architectures": sorted(ModelRegistry.get_supported_archs()),
        },
    )


if __name__ == "__main__":
    main()
