"""One line that says what went wrong, out of whatever a program printed."""

import pytest

from model_optimizer.host.causes import describe_status, first_cause, ran_out_of_memory

VLLM = """\
(EngineCore pid=41) INFO 12-01 04:03:15 [core.py:112] Initializing a V1 LLM engine
(Worker pid=42) ERROR 12-01 04:03:15 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker pid=42) ERROR 12-01 04:03:15 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker pid=42) ERROR 12-01 04:03:15 [multiproc_executor.py:953]   File "a/weight_utils.py", line 1105, in load
(Worker pid=42) ERROR 12-01 04:03:15 [multiproc_executor.py:953]     with safe_open(path) as f:
(Worker pid=42) ERROR 12-01 04:03:15 [multiproc_executor.py:953]          ^^^^^^^^^^^^^^^
(Worker pid=42) ERROR 12-01 04:03:15 [multiproc_executor.py:953] safetensors.SafetensorError: incomplete metadata
(EngineCore pid=41) ERROR 12-01 04:03:17 [core.py:1510] EngineCore failed to start.
(EngineCore pid=41) ERROR 12-01 04:03:17 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=41) ERROR 12-01 04:03:17 [core.py:1510]   File "b/core.py", line 1482, in run_engine_core
(EngineCore pid=41) ERROR 12-01 04:03:17 [core.py:1510] Exception: WorkerProc initialization failed due to \
an exception in a background process. See stack trace for root cause.
Process EngineCore:
Traceback (most recent call last):
  File "c/process.py", line 314, in _bootstrap
    self.run()
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
PYDANTIC = """\
Traceback (most recent call last):
  File "d/config.py", line 121, in __init__
    s.validate_python(x)
pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Model architectures ['NopeForCausalLM'] are not supported for now.
    For further information visit the docs
"""
CHAIN = """\
loading
Traceback (most recent call last):
  File "w.py", line 3, in read
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: 'config.json'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "w.py", line 9, in main
    read()
OSError: the model cannot be loaded
"""
HARMLESS_FIRST = """\
Traceback (most recent call last):
  File "x.py", line 1, in probe
ImportError: no optional kernel
falling back
Traceback (most recent call last):
  File "y.py", line 1, in main
ValueError: vocabulary has 10 tokens, embedding has 12 rows
"""
NATIVE = """\
llama_model_loader: loaded meta data
llama_model_load: error loading model: tensor 'blk.3' data is not within the file bounds
llama_load_model_from_file: failed to load model
exiting
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (VLLM, "safetensors.SafetensorError: incomplete metadata"),
        (CHAIN, "FileNotFoundError: [Errno 2] No such file or directory: 'config.json'"),
        (HARMLESS_FIRST, "ValueError: vocabulary has 10 tokens, embedding has 12 rows"),
        (NATIVE, "llama_model_load: error loading model: tensor 'blk.3' data is not within the file bounds"),
        (
            "usage: serve [-h]\nserve: error: unrecognized arguments: --foo\n",
            "serve: error: unrecognized arguments: --foo",
        ),
        ("one\ntwo\n\n", "two"),
        ("", None),
    ],
)
def test_first_cause(text, cause):
    assert first_cause(text.splitlines()) == cause


def test_a_validation_error_says_what_was_not_valid():
    cause = first_cause(PYDANTIC.splitlines())
    assert cause is not None
    assert "Model architectures ['NopeForCausalLM'] are not supported" in cause


def test_a_traceback_cut_off_at_its_end_is_no_crash():
    assert first_cause(["Traceback (most recent call last):", '  File "x.py", line 1']) == 'File "x.py", line 1'


@pytest.mark.parametrize(
    ("returncode", "lines", "expected"),
    [
        (-9, (), True),
        (137, (), True),
        (1, ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory",), True),
        (1, ("MemoryError",), True),
        (134, ("terminate called after throwing an instance of 'std::bad_alloc'",), True),
        (1, ("ValueError: bad",), False),
        (-11, (), False),
    ],
)
def test_memory_as_the_reason(returncode, lines, expected):
    assert ran_out_of_memory(returncode, lines) is expected


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(1, "exit status 1"), (-11, "SIGSEGV"), (139, "SIGSEGV"), (-4, "does not have"), (-9, "memory"), (255, "255")],
)
def test_exit_status_for_people(returncode, words):
    assert words in describe_status(returncode)
