"""What every engine and every transform must do: run over the tables, so a new one is tested by itself."""

from __future__ import annotations

import inspect
import re
from importlib.resources import files
from typing import Any, get_args

import pytest

from model_optimizer.engines import ENGINES
from model_optimizer.engines.base import Engine
from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.model import Format
from model_optimizer.records.tooling import Fit, Gauges, Job, Launch, Serve, WhyNot
from model_optimizer.transforms import TRANSFORMS
from model_optimizer.transforms.base import Transform
from tests.engines.conftest import H200, HOST, SMOLLM2

SECRET = re.compile(r"token=|api[-_]?key|secret|password|hf_[A-Za-z0-9]{8}", re.IGNORECASE)
FORMATS = set(get_args(Format))
STEPS = [
    TransformStep(transform="gguf_dequantize"),
    TransformStep(transform="gguf_convert", options={"outtype": "bf16"}),
    TransformStep(transform="gguf_quantize", options={"scheme": "q4_k_m"}),
]
FITS = [
    Fit(model=model, host=host, scheme=scheme, max_model_len=2048, concurrency=4, weight_bytes=10**8)
    for model in (SMOLLM2, SMOLLM2.model_copy(update={"format": "gguf", "architecture": "llama"}))
    for host in (HOST, HOST.model_copy(update={"gpus": (H200,)}), HOST.model_copy(update={"os": "Windows 11"}))
    for scheme in ("as-is", "q8_0", "bf16")
]
engines = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
transforms = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())


def members(protocol: type) -> list[str]:
    return [name for name in (*protocol.__annotations__, *vars(protocol)) if not name.startswith("_")]


def has_worker(name: str) -> bool:
    return (files("model_optimizer") / "workers" / f"{name}.py").is_file()


def check_job(job: Job) -> None:
    assert has_worker(job.worker)
    assert job.timeout_s > 0
    assert not SECRET.search(repr(job))
    assert Job.from_json(job.to_json()) == job, "the payload is plain JSON"


def test_every_step_of_the_table_is_tried_here() -> None:
    assert {step.transform for step in STEPS} == set(TRANSFORMS)


@engines
@pytest.mark.parametrize("member", members(Engine))
def test_engine_has_the_protocols_members(engine: Any, member: str) -> None:
    assert hasattr(engine, member), f"{engine.__name__} lacks {member}"
    wanted = getattr(Engine, member, None)
    if callable(wanted):
        expected = [name for name in inspect.signature(wanted).parameters if name != "self"]
        assert list(inspect.signature(getattr(engine, member)).parameters) == expected


@transforms
@pytest.mark.parametrize("member", members(Transform))
def test_transform_has_the_protocols_members(transform: Any, member: str) -> None:
    assert hasattr(transform, member), f"{transform.__name__} lacks {member}"
    wanted = getattr(Transform, member, None)
    if callable(wanted):
        expected = [name for name in inspect.signature(wanted).parameters if name != "self"]
        assert list(inspect.signature(getattr(transform, member)).parameters) == expected


def test_tables_are_keyed_by_name() -> None:
    assert [engine.NAME for engine in ENGINES.values()] == list(ENGINES)
    assert [transform.NAME for transform in TRANSFORMS.values()] == list(TRANSFORMS)


@engines
@pytest.mark.parametrize("fit", FITS)
def test_engine_answers_alike_twice(engine: Engine, fit: Fit) -> None:
    before = fit.to_json()
    why_not = engine.why_not(fit)
    assert why_not is None or (isinstance(why_not, WhyNot) and re.fullmatch(r"[A-Z][A-Z0-9_]+", why_not.code))
    assert engine.why_not(fit) == why_not
    assert engine.engine_args(fit) == engine.engine_args(fit)
    assert engine.memory_bytes(fit) == engine.memory_bytes(fit) > fit.weight_bytes
    assert fit.to_json() == before


@engines
@pytest.mark.parametrize("fit", FITS)
def test_launch_takes_every_starting_parameter(engine: Engine, fit: Fit) -> None:
    serve = Serve(
        model_path="/store/x", port=18099, max_model_len=2048, concurrency=4, cpu_cores=2, device=fit.host.accelerator,
        engine_args=engine.engine_args(fit),
    )  # fmt: skip
    launch = engine.launch(serve)
    assert isinstance(launch, Launch)
    assert launch == engine.launch(serve)
    assert (launch.worker is None) != (launch.module is None)
    assert launch.worker is None or has_worker(launch.worker)
    assert all(isinstance(arg, str) and arg for arg in launch.args)
    assert "/store/x" in launch.args
    assert "18099" in launch.args
    assert launch.served_model in launch.args
    assert not SECRET.search(" ".join(launch.args))
    assert not any(SECRET.search(value) for value in launch.env.values())
    assert "0.0.0.0" not in " ".join(launch.args), "only loopback"


@engines
def test_logits_job(engine: Engine) -> None:
    job = engine.logits_job("/store/x", "/store/reference", engine.engine_args(FITS[0]))
    check_job(job)
    assert job.tool == engine.TOOL
    assert {"model", "reference", "engine_args"} <= job.payload.keys()


@engines
@pytest.mark.parametrize("page", ["", "# HELP x y\n", "<html>404</html>", "vllm:num_requests_running NaN garbage"])
def test_gauges_of_a_page_that_is_none(engine: Engine, page: str) -> None:
    assert engine.gauges(page) == Gauges()


@engines
def test_formats_exist(engine: Engine) -> None:
    assert engine.FORMATS
    assert engine.FORMATS <= FORMATS


@transforms
def test_transform_changes_one_known_format_into_another(transform: Transform) -> None:
    assert transform.ACCEPTS <= FORMATS
    assert transform.PRODUCES in FORMATS
    assert transform.KIND in ("quantize", "convert")
    assert transform.VERSION >= 1


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.transform)
def test_transform_jobs(step: TransformStep) -> None:
    transform = TRANSFORMS[step.transform]
    job = transform.job(step, "/store/source", "/store/target")
    check_job(job)
    assert job == transform.job(step, "/store/source", "/store/target")
    assert job.tool == transform.TOOL
    assert job.payload["model"] == "/store/source"
    main = transform.output_main(step)
    assert (main == "") == (transform.PRODUCES == "hf")
    assert job.payload.get("outfile", "") == main
    assert 0 < transform.output_bytes(step, SMOLLM2) < 10 * SMOLLM2.weight_bytes


@transforms
@pytest.mark.parametrize("fit", FITS)
def test_transform_refusals_are_sentences(transform: Transform, fit: Fit) -> None:
    why_not = transform.why_not(fit)
    assert why_not == transform.why_not(fit)
    assert why_not is None or (why_not.code.isupper() and " " in why_not.reason)
