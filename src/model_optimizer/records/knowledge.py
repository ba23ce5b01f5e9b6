"""What is known without measuring: facts with their sources, what an engine can do, what a GPU costs."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from model_optimizer.records.base import Record

Status = Literal["vendor", "measured", "community"]
"""``vendor``: the maker's own page, file or source code. ``measured``: read from a device or run by somebody who shows
the reading. ``community``: databases, blogs, forums. Only the first two may refuse a path; the third may only hint."""

Basis = Literal["published", "derived"]
"""``derived`` values are computed from others; they are no better than the weakest of their sources."""

StateName = Literal["native", "emulated", "impossible", "unknown"]
"""``native``: kernels of that precision. ``emulated``: it loads and runs, computed in another precision.
``impossible``: refused. ``unknown``: no source that may decide; try it and see."""

Platform = Literal["cuda", "rocm", "xpu", "cpu"]
OsName = Literal["linux", "windows", "wsl2", "macos"]

T = TypeVar("T")

STATUS_ORDER: tuple[Status, ...] = ("vendor", "measured", "community")


class Source(Record):
    """Where facts were read. ``read`` is the date (ISO) on which somebody looked."""

    id: str
    title: str
    url: str | None = None
    read: str
    status: Status


class Sourced(Record, Generic[T]):
    """A value with the ids of its sources; the record that holds it lists the sources themselves."""

    value: T
    sources: tuple[str, ...]
    status: Status
    basis: Basis = "published"
    note: str = ""

    @property
    def may_refuse(self) -> bool:
        """True where this value is good enough to rule a path out."""
        return self.status != "community"


class Reason(Record):
    """A reason code: what it means and what helps, for people. ``state`` is what the code says about a path."""

    code: str
    state: StateName
    title: str
    fix: str = ""


class State(Record):
    """What an engine can do with a scheme on a GPU, and how we know. ``date`` is when the newest source was read."""

    scheme: str
    engine: str
    gpu: str
    version: str
    state: StateName
    code: str
    sentence: str
    sources: tuple[Source, ...] = ()
    date: str = ""
    status: Status

    @property
    def may_try(self) -> bool:
        """True unless a source that may refuse says it cannot work."""
        return self.state != "impossible"


class SchemeSpec(Record):
    """A precision of weights, activations or KV cache, by the name its community writes.

    ``weight_bits`` counts scales and minima too (bits a stored weight costs). ``compute`` is the type the products are
    computed in when the scheme is native; ``activation_bits`` what the activations are rounded to before.
    ``checkpoint`` is the file format; ``methods`` maps an engine to its own name for the scheme.
    """

    id: str
    title: str
    kind: Literal["weights", "kv_cache"] = "weights"
    weight_bits: float
    activation_bits: float
    compute: str
    checkpoint: Literal["hf", "gguf", "onnx", "openvino", "any"]
    group_size: int | None = None
    calibration: Literal["none", "optional", "needed"] = "none"
    methods: dict[str, str] = {}
    note: str = ""
    sources: tuple[Source, ...] = ()


class FlagFact(Record):
    """A flag of an engine, spelled as the engine spells it.

    ``since``: the oldest inspected release that has it; ``removed``: the oldest inspected one that lacks it again.
    ``default`` is what it was when read; defaults move, the installed engine knows better.
    """

    flag: str
    field: str | None = None
    group: str = ""
    default: str | int | float | bool | None = None
    values: str | tuple[str | int, ...] | None = None
    since: str | None = None
    removed: str | None = None
    alias: str | None = None
    note: str = ""


class MissingName(Record):
    """A flag, module or metric that people quote and that does not exist (any more); ``instead`` is what to use."""

    name: str
    why: str
    instead: str = ""


class EngineFacts(Record):
    """An engine: where it runs, what it needs, its flags and metric names.

    ``shipped_capabilities``: compute capabilities for which its wheel carries native code (``ptx``: others by JIT).
    ``memory_share``: what the fraction given to its memory flag is a fraction *of*.
    """

    id: str
    title: str
    current_version: str
    inspected_versions: tuple[str, ...] = ()
    server: bool
    checkpoints: tuple[str, ...]
    platforms: tuple[Platform, ...]
    os: dict[OsName, str]
    python: str | None = None
    pins: dict[str, str] = {}
    cuda: str | None = None
    min_compute_capability: Sourced[str] | None = None
    shipped_capabilities: Sourced[tuple[str, ...]] | None = None
    gfx: tuple[str, ...] | None = None
    min_driver_linux: Sourced[str] | None = None
    install: dict[str, str] = {}
    serve: str | None = None
    default_port: int | None = None
    health_path: str | None = None
    metrics_path: str | None = None
    openai_paths: tuple[str, ...] = ()
    metrics: dict[str, str] = {}
    memory_share: Literal["total", "weights_and_kv", "free_after_weights", "bytes", "none"] = "none"
    quantization_methods: tuple[str, ...] = ()
    flags: tuple[FlagFact, ...] = ()
    missing: tuple[MissingName, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    def flag(self, name: str) -> FlagFact | None:
        """The flag of that name (or alias), or ``None``. ``kb.query.flag_in`` also compares versions."""
        return next((f for f in self.flags if name in (*f.flag.split(" / "), f.alias)), None)


class InstalledEngine(Record):
    """What an installation says about itself; it wins over the shipped table.

    ``methods``: quantization method → minimum compute capability (``None``: it does not say); llama.cpp: tensor types.
    ``variants``: the same for the formats inside a method (compressed-tensors: ``w4a8_fp8`` → 9.0).
    ``activation_dtypes``: method → types it takes activations in. ``flags`` holds every spelling of ``flag_facts``,
    whose defaults and values are those of this version. ``dtypes``: what it computes in on this machine.
    """

    engine: str
    version: str
    methods: dict[str, str | None]
    flags: tuple[str, ...] = ()
    platform: Platform | None = None
    build: str = ""
    variants: dict[str, str | None] = {}
    activation_dtypes: dict[str, tuple[str, ...]] = {}
    deprecated_methods: tuple[str, ...] = ()
    flag_facts: tuple[FlagFact, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    read: str = ""

    def flag(self, name: str) -> FlagFact | None:
        """The flag of that name or alias as installed, or ``None``: this installation does not have it."""
        return next((f for f in self.flag_facts if name in (f.flag, *(f.alias or "").split(" / "))), None)


class GpuPrice(Record):
    """What an hour of one GPU costs. ``date`` is when the price was seen; prices move."""

    gpu: str
    provider: str
    usd_per_hour: float
    tier: Literal["on-demand", "spot", "reserved", "serverless", "own"] = "on-demand"
    gpus_per_machine: int = 1
    date: str
    status: Status
    source: Source | None = None
    note: str = ""


class Electricity(Record):
    """Price of electric energy, and how much the building adds to what the machine draws (PUE)."""

    usd_per_kwh: float
    pue: float = 1.0
    region: str
    date: str
    status: Status
    source: Source | None = None


class ToolkitDriver(Record):
    """A CUDA toolkit and the drivers NVIDIA pairs with it."""

    cuda: str
    linux: str | None = None
    windows: str | None = None
    note: str = ""


class CompatFacts(Record):
    """Drivers, CUDA, compute capabilities: which works with which. Compare versions with ``kb.versions``.

    ``min_driver_of_major``: driver floor (Linux) of each CUDA major version, by minor-version compatibility.
    ``introduced_in``: first toolkit that can emit code for a capability. ``dropped_in``: first that cannot any more.
    ``last_driver_branch``: the last driver branch for a capability's major version.
    """

    toolkits: tuple[ToolkitDriver, ...]
    min_driver_of_major: dict[str, str]
    introduced_in: dict[str, str]
    dropped_in: dict[str, str]
    last_driver_branch: dict[str, int]
    torch_wheel_cuda: dict[str, str]
    torch_wheel_capabilities: dict[str, tuple[str, ...]]
    notes: dict[str, str] = {}
    sources: tuple[Source, ...] = ()
