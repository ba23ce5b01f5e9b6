"""The request: defaults, then the request file, then the flags; the origin of each value is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from model_optimizer.errors import SpecInvalid
from model_optimizer.kb.load import line_of, read_yaml
from model_optimizer.kb.names import nearest
from model_optimizer.kb.traffic import traffic
from model_optimizer.records.run import Origin, RunSpec

DEFAULTS: dict[str, Any] = {"traffic": "founding-mix"}
DEMO: dict[str, Any] = {"model": "demo", "traffic": "demo", "slo": {"tpot_p95": "60 ms", "error_rate": "0.1 %"}}


def resolve(flags: Mapping[str, Any], file: Path | None = None, *, demo: bool = False) -> RunSpec:
    """The full request. ``flags`` holds only what was given on the command line, in the request file's names.

    Raises ``SpecInvalid`` with file and line, or with the option's name, and what is allowed.
    """
    layers: list[tuple[Origin, Mapping[str, Any]]] = [("default", {**DEFAULTS, **(DEMO if demo else {})})]
    if file is not None:
        layers.append(("file", _read(file)))
    layers.append(("flag", flags))
    values: dict[str, Any] = {}
    origin: dict[str, Origin] = {}
    for name, layer in layers:
        for key, value in layer.items():
            values[key] = value
            origin[key] = name
    if "model" not in values:
        raise SpecInvalid(
            "no model was named",
            cause="neither an argument nor a request file says which",
            fix="model-optimize run MODEL (a folder, a .gguf file or a hub id), or model-optimize run --demo",
        )
    if isinstance(values["traffic"], str):
        values["traffic"] = traffic(values["traffic"])
    try:
        return RunSpec.model_validate({**values, "origin": origin})
    except ValidationError as error:
        raise _invalid(error, file, origin) from error


def parse_slo(options: Sequence[str]) -> dict[str, str]:
    """``["ttft_p99=150ms", "tpot_p95=40ms,error_rate=0.1%"]`` → the mapping a request file would hold."""
    limits: dict[str, str] = {}
    for option in options:
        for part in option.split(","):
            key, equals, value = part.partition("=")
            if not equals or not value.strip():
                raise SpecInvalid(
                    f"--slo {part!r} is not a limit",
                    cause="a limit is written NAME=VALUE with a unit",
                    fix="for example --slo ttft_p99=150ms --slo tpot_p95=40ms --slo error_rate=0.1%",
                )
            limits[key.strip()] = value.strip()
    return limits


def parse_traffic(option: str) -> str | dict[str, Any]:
    """A profile's name as it is, or the mapping in a YAML file."""
    if not option.endswith((".yaml", ".yml")):
        return option
    content = read_yaml(Path(option))
    if not isinstance(content, dict):
        raise SpecInvalid(
            f"{option} is not a traffic profile",
            cause="its top level is not a mapping",
            fix="write prompt_tokens: {128: 80 %, 512: 20 %}, output_tokens: 128, loads: [1, 8]",
        )
    return content


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = read_yaml(file)
    except SpecInvalid as error:
        raise SpecInvalid(
            error.what, cause=error.cause, fix="a request file is a YAML mapping: model, traffic, slo, …"
        ) from error
    if not isinstance(content, dict):
        raise SpecInvalid(
            f"{file} is not a request",
            cause="its top level is not a mapping",
            fix="write keys such as model:, traffic:, slo: (README shows one)",
        )
    known = set(RunSpec.model_fields) - {"origin"}
    for key in content:
        if key not in known:
            near = nearest(str(key), sorted(known))
            raise SpecInvalid(
                f"{file}: unknown key {key!r}",
                cause=f"{file}:{line_of(file, (str(key),))}",
                fix=f"did you mean {near[0]}?" if near else f"known keys: {', '.join(sorted(known))}",
            )
    return content


def _invalid(error: ValidationError, file: Path | None, origin: Mapping[str, Origin]) -> SpecInvalid:
    found = []
    for problem in error.errors(include_url=False):
        loc = problem["loc"]
        key = str(loc[0])
        where = f"{file}:{line_of(file, loc)}" if file and origin.get(key) == "file" else f"--{key.replace('_', '-')}"
        name = ".".join(str(part) for part in loc)
        found.append(f"{where}: {name}: {problem['msg'].removeprefix('Value error, ')}")
    return SpecInvalid(
        "the request is not valid",
        cause=found[0],
        fix="correct that value and run the same line again",
        evidence=found[1:],
    )
