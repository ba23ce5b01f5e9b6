"""Quantize a GGUF file (f32, f16, bf16) with llama.cpp's own row formats and its rule for which tensor gets which.

Run as ``python gguf_quantize.py payload.json`` in the ``gguf`` environment.
Payload: ``model`` (file), ``mix`` (transforms/gguf_quantize.py), ``outfile``, ``threads`` (0: all cores), ``target``,
``result``.

Metadata is copied byte for byte, except for the file type and the quantization version. Tensors are read, quantized and
written in pieces of rows, so memory does not grow with the model.
"""

import ctypes
import json
import multiprocessing
import os
import re
import signal
import struct
import sys
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# name -> (number in the file format, elements a block, bytes a block)
TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136),
}  # fmt: skip
NAMES = {number: name for name, (number, _, _) in TYPES.items()}

# Parts of names of 2-D tensors that stay as they are: small, or too sensitive.
KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    ".position_embd", ".rel_pos", ".patch_embd", ".patch_merger", "sam.pos_embd", "sam.neck.", "sam.net_",
    "a.rvq.codebook", "mm.a.code_embd",
    *(f"time_mix_{x}.weight" for x in ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2",
                                       "decay_w1", "decay_w2", "lerp_fused")),
)  # fmt: skip
KEPT_WHOLE = ("position_embd.weight", "token_types.weight")
CATEGORIES = (
    ("output", ("output.weight",)),
    ("token_embd", ("token_embd.weight", "per_layer_token_embd.weight")),
)
PIECE_ELEMENTS = 4 << 20
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


def fail(what, fix):
    sys.exit(f"{what}\nfix: {fix}")


def progress(done, total, what):
    print("@progress " + json.dumps({"done": done, "total": total, "what": what}), flush=True)


# ---------------------------------------------------------------------------------------------- the file format


class Reader:
    """Walks a GGUF header. Strings and arrays are stepped over, not unpacked: vocabularies have 10^5 entries."""

    def __init__(self, path):
        self.raw, self.values = {}, {}
        try:
            with Path(path).open("rb") as self.data:
                self.read(path)
        except (struct.error, UnicodeDecodeError):
            fail(f"the header of {path} is cut short or damaged", "convert the model again")

    def read(self, path):
        magic, version, tensor_count, kv_count = struct.unpack("<4sIQQ", self.data.read(24))
        if magic != b"GGUF" or version not in (2, 3):
            fail(f"{path} is not a little-endian GGUF file of version 2 or 3", "convert the model again")
        for _ in range(kv_count):
            self.pair()
        self.tensors = [self.tensor_info() for _ in range(tensor_count)]
        self.alignment = int(self.values.get("general.alignment", 32))
        self.data_start = padded(self.data.tell(), self.alignment)

    def pair(self):
        start = self.data.tell()
        key = self.string()
        (kind,) = struct.unpack("<I", self.data.read(4))
        self.values[key] = self.value(kind)
        end = self.data.tell()
        self.data.seek(start)
        self.raw[key] = self.data.read(end - start)

    def string(self):
        (length,) = struct.unpack("<Q", self.data.read(8))
        return self.data.read(length).decode("utf-8")

    def value(self, kind):
        if kind in SCALARS:
            return struct.unpack(SCALARS[kind], self.data.read(struct.calcsize(SCALARS[kind])))[0]
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            fail(f"unknown value type {kind} in the GGUF header", "convert the model again")
        inner, count = struct.unpack("<IQ", self.data.read(12))
        if inner in SCALARS:
            self.data.seek(count * struct.calcsize(SCALARS[inner]), os.SEEK_CUR)
        else:
            for _ in range(count):
                if inner == STRING:
                    (length,) = struct.unpack("<Q", self.data.read(8))
                    self.data.seek(length, os.SEEK_CUR)
                else:
                    self.value(inner)
        return None

    def tensor_info(self):
        name = self.string()
        (dims,) = struct.unpack("<I", self.data.read(4))
        shape = struct.unpack(f"<{dims}Q", self.data.read(8 * dims))
        number, offset = struct.unpack("<IQ", self.data.read(12))
        return {"name": name, "shape": shape, "type": NAMES.get(number, f"type {number}"), "offset": offset}


def padded(size, alignment):
    return (size + alignment - 1) // alignment * alignment


def tensor_bytes(shape, kind):
    elements = 1
    for n in shape:
        elements *= n
    _, block, size = TYPES[kind]
    return elements // block * size


def layer_of(name):
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


# ------------------------------------------------------------------------------- which tensor gets which type


def category(name):
    """The part a tensor plays, as far as the rules distinguish it."""
    for label, names in CATEGORIES:
        if name in names:
            return label
    for label, parts in (
        ("attn_v", ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")),
        ("attn_k", ("attn_k.weight",)),
        ("attn_output", ("attn_output.weight",)),
        ("ffn_down", ("ffn_down",)),
    ):
        if any(part in name for part in parts):
            return label
    return "other"


def is_quantizable(name, shape):
    """Matrices named ``…weight``, except those kept for their size or their sensitivity. Vectors stay."""
    return (
        any(n > 1 for n in shape[1:])
        and name.endswith("weight")
        and name not in KEPT_WHOLE
        and not any(part in name for part in KEPT)
    )


def applies(when, layer, layers, gqa):
    """Whether a rule of the mix holds for this layer. ``more_bits``: first and last eighth, and every third between."""
    kind, _, number = when.partition(":")
    if kind == "more_bits":
        return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if kind == "first":
        return layer < int(number)
    if kind == "share":
        return layer < layers // int(number)
    if kind == "gqa":
        return gqa >= int(number)
    return True


def choose_types(tensors, meta, mix):
    """Tensor name -> type, for ``tensors`` in file order. ``meta``: arch, layers, experts, gqa (query heads a KV head).

    llama.cpp's rule, so that ``q4_k_m`` means here what it means there. Not copied: exceptions for Falcon's layers.
    """
    default, experts = mix["default"], meta["experts"]
    counts = {"attn_v": sum(category(t["name"]) == "attn_v" for t in tensors), "ffn_down": meta["layers"]}
    tied = not any(t["name"] == "output.weight" for t in tensors)
    seen, chosen = {"attn_v": 0, "ffn_down": 0}, {}
    for tensor in tensors:
        name, columns = tensor["name"], tensor["shape"][0]
        if not is_quantizable(name, tensor["shape"]):
            chosen[name] = tensor["type"]
            continue
        part, kind = category(name), default
        layer = seen.get(part, 0)
        if part in seen:
            seen[part] += 1
        if part == "ffn_down" and experts > 1:
            layer = layer_of(name)
        if part == "output" or (part == "token_embd" and tied):
            if meta["arch"] == "falcon" or columns % TYPES[default][1]:
                kind = "Q8_0"
            elif default != "Q8_0":
                kind = "Q6_K"
        elif experts == 8 and part in ("attn_v", "attn_k"):
            kind = "Q8_0"
        elif experts == 8 and part == "attn_output":
            kind = "Q5_K" if mix.get("experts_output_q5", False) else default
        else:
            for which, when, better in mix.get("rules", ()):
                if which == part and applies(when, layer, counts.get(part, meta["layers"]), meta["gqa"]):
                    kind = better
                    break
            is_70b = meta["arch"] == "llama" and meta["layers"] == 80 and meta["gqa"] > 1
            if part == "attn_v" and is_70b and kind in ("Q3_K", "Q4_K"):
                kind = "Q5_K"
        if columns % TYPES[kind][1]:
            kind = mix["fallback"].get(kind, "F16")
            if columns % TYPES[kind][1]:
                kind = "F16"
        chosen[name] = kind
    return chosen


def describe(values):
    """What the rules ask about the model."""
    arch = values["general.architecture"]
    heads, kv_heads = values.get(f"{arch}.attention.head_count"), values.get(f"{arch}.attention.head_count_kv")
    return {
        "arch": arch,
        "layers": int(values.get(f"{arch}.block_count", 0)),
        "experts": int(values.get(f"{arch}.expert_count", 0)),
        "gqa": heads // kv_heads if heads and kv_heads else 1,
    }


# ------------------------------------------------------------------------------------------------- the work


def pieces(tensor):
    """(first row, rows) of pieces of about ``PIECE_ELEMENTS`` elements."""
    columns = tensor["shape"][0]
    rows = tensor_bytes(tensor["shape"], "F16") // 2 // columns
    step = max(1, PIECE_ELEMENTS // columns)
    return [(first, min(step, rows - first)) for first in range(0, rows, step)]


def quantize_piece(path, start, rows, columns, source, wanted):
    """Quantized bytes of ``rows`` rows that lie at byte ``start`` of the file; ``None``: they hold NaN or infinity."""
    import libgguf
    import numpy as np

    width = TYPES[source][2]
    with Path(path).open("rb") as file:
        file.seek(start)
        raw = file.read(rows * columns * width)
    if source == "BF16":
        values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(raw, "<f2" if source == "F16" else "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        return None
    values = values.reshape(rows, columns)
    if wanted in ("F16", "F32"):
        return values.astype("<f2" if wanted == "F16" else "<f4").tobytes()
    return libgguf.quantize_rows(values, libgguf.GGMLQuantizationType[wanted]).tobytes()


def die_with_parent(parent):
    """A killed parent must not leave its pool behind (Linux: the kernel tells; elsewhere the closed pipe does)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def quantized(pool, ahead, path, reader, tensor, wanted):
    """The pieces of one tensor in order, computed up to ``ahead`` pieces before they are needed."""
    columns, width = tensor["shape"][0], TYPES[tensor["type"]][2]
    base = reader.data_start + tensor["offset"]
    waiting = deque()
    for first, rows in pieces(tensor):
        start = base + first * columns * width
        waiting.append(pool.submit(quantize_piece, path, start, rows, columns, tensor["type"], wanted))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def copied(path, start, size):
    with Path(path).open("rb") as file:
        file.seek(start)
        while size:
            block = file.read(min(size, 16 << 20))
            if not block:
                fail(f"{path} is cut short", "convert the model again")
            size -= len(block)
            yield block


def header(reader, tensors, chosen, file_type):
    """Everything before the tensor data, and the tensors' sizes."""
    dropped = ("general.quantization_version", "general.file_type", "split.no", "split.count", "split.tensors.count")
    raw = [value for key, value in reader.raw.items() if key not in dropped]
    for key, number in (("general.quantization_version", 2), ("general.file_type", file_type)):
        raw.append(struct.pack("<Q", len(key)) + key.encode() + struct.pack("<II", 4, number))
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(raw)), *raw]
    offset, sizes = 0, []
    for tensor in tensors:
        name, shape, kind = tensor["name"].encode(), tensor["shape"], chosen[tensor["name"]]
        parts.append(struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        parts.append(struct.pack("<IQ", TYPES[kind][0], offset))
        sizes.append(tensor_bytes(shape, kind))
        offset += padded(sizes[-1], reader.alignment)
    data = b"".join(parts)
    return data.ljust(padded(len(data), reader.alignment), b"\0"), sizes


def check_source(reader, tensors, chosen):
    """Only full-precision weights are quantized: doing it twice loses twice."""
    if int(reader.values.get("split.count", 1)) > 1:
        fail("the GGUF file is split into several", "convert the model again, into one file")
    for tensor in tensors:
        if tensor["type"] not in TYPES:
            fail(f"{tensor['name']} has {tensor['type']}, which is not known here", "convert the model to f16 first")
        if tensor["type"] not in ("F32", "F16", "BF16") and chosen[tensor["name"]] != tensor["type"]:
            fail(f"{tensor['name']} is quantized already ({tensor['type']})", "start from an f16 or bf16 GGUF file")


def main():
    payload = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    started, path = time.monotonic(), payload["model"]
    reader = Reader(path)
    tensors = sorted(reader.tensors, key=lambda t: (layer_of(t["name"]), t["name"]))
    chosen = choose_types(tensors, describe(reader.values), payload["mix"])
    check_source(reader, tensors, chosen)
    threads = payload.get("threads") or len(os.sched_getaffinity(0))
    outfile = Path(payload["target"]) / payload["outfile"]
    part = outfile.with_name(outfile.name + ".part")
    head, sizes = header(reader, tensors, chosen, payload["mix"]["file_type"])
    total, done = sum(sizes), 0
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(threads, context, initializer=die_with_parent, initargs=(os.getpid(),))
    with pool, part.open("wb") as out:
        out.write(head)
        for tensor, size in zip(tensors, sizes, strict=True):
            name, wanted = tensor["name"], chosen[tensor["name"]]
            progress(done, total, f"{name} → {wanted}")
            if wanted == tensor["type"]:
                blocks = copied(path, reader.data_start + tensor["offset"], size)
            else:
                blocks = quantized(pool, threads * 2, path, reader, tensor, wanted)
            for block in blocks:
                if block is None:
                    fail(f"{name} holds NaN or infinity", "the checkpoint is damaged: fetch it again")
                out.write(block)
            out.write(b"\0" * (padded(size, reader.alignment) - size))
            done += size
        out.flush()
        os.fsync(out.fileno())
    part.replace(outfile)
    progress(total, total, "done")
    counts = {}
    for tensor in tensors:
        counts[chosen[tensor["name"]]] = counts.get(chosen[tensor["name"]], 0) + 1
    result = {"main": payload["outfile"], "bytes": outfile.stat().st_size, "tensors": counts}
    temporary = Path(payload["result"] + ".part")
    temporary.write_text(json.dumps(result | {"seconds": time.monotonic() - started}), encoding="utf-8")
    temporary.replace(payload["result"])


if __name__ == "__main__":
    main()
