"""Run a GGUF model in llama.cpp over a reference's tokens and write what it says.

Run as ``python llama_cpp_logits.py payload.json`` in the ``llama.cpp`` environment (xllamacpp, gguf, numpy).
Payload: ``model`` (GGUF file), ``reference`` (folder, see transformers_logits.py), ``target`` (folder to fill),
``result`` (file), ``engine_args`` (llama.cpp's own parameter names, as for the server).

llama.cpp's server gives no logits of a prompt. With embeddings of pooling type *none* it gives the final, normed hidden
state of every token; logits = hidden state x output head, and the head is in the GGUF file. Its kernels round the
hidden state before that product, so we round alike. Whether this reproduces the engine's own numbers is checked in
every run against the log-probabilities of its completion endpoint. If not, the endpoint is asked at the probes.

Writes nll.npy, top1.npy, dump.json and, by method: hidden_states: probe_logits.npy; server_top_k: probe_top_ids.npy and
probe_top_logprobs.npy, with NaN in nll and -1 in top1 where nothing was measured.
"""

import gc
import json
import os
import sys
import time
import urllib.error
import urllib.request
from difflib import SequenceMatcher
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from gguf import GGMLQuantizationType as Type

HALF_MAX = 65504.0
HEAD_SLICE = 4096  # rows of the head that are dequantized at once
CHECKS = 6  # positions of the self-check
CHECK_TOP = 64  # most likely tokens compared at each
# Mean difference of log-probabilities that the self-check allows. Rounded alike, it is below 0.001; rounding in another
# way moves it to about 0.1 (measured, Q8_0 head). A wrong norm, scale or head moves it by whole nats.
CHECK_TOLERANCE = 0.25
TOP_K = 256


def progress(done, total, what):
    print("@progress " + json.dumps({"done": done, "total": total, "what": what}), flush=True)


def write_json(path, value):
    """Last of all, and by rename: a file that exists is complete."""
    part = Path(f"{path}.part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


def converted(old, value):
    """``value`` as the type that the parameter has; enums by llama.cpp's short names (``q8_0``, ``enabled``)."""
    kind = type(old)
    if hasattr(kind, "__members__"):
        for member in kind:
            if member.name.lower() == str(value).lower() or member.name.lower().endswith(f"_type_{str(value).lower()}"):
                return member
        sys.exit(f"llama.cpp: {value!r} is none of {', '.join(m.name for m in kind)}\nfix: correct engine_args")
    if isinstance(old, bool):
        return str(value).lower() in ("true", "1", "on")
    return kind(value)


class Server:
    """llama.cpp's server in this process, giving hidden states and completions."""

    def __init__(self, model, engine_args, chunk):
        params = xllamacpp.CommonParams()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = cores
        for name, value in engine_args.items():
            if name == "n_threads":
                params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(value)
            elif hasattr(params, name) and not name.startswith("_"):
                setattr(params, name, converted(getattr(params, name), value))
        params.model.path = model
        params.hostnames, params.port = ["127.0.0.1"], 0
        params.n_parallel, params.n_ctx = 1, chunk + 64
        params.n_batch = params.n_ubatch = chunk  # one chunk is one batch, as embeddings require
        params.embedding, params.embd_normalize = True, -1
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_NONE
        params.fit_params, params.offline, params.ui = False, True, False
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            sys.exit(f"llama.cpp could not load the model: {error}\nfix: see llama.cpp's own messages above")

    def post(self, path, body):
        request = urllib.request.Request(
            self._server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=3600) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                sys.exit(f"llama.cpp answered {error.code} to {path}: {error.read(500).decode('utf-8', 'replace')}")

    def tokenize(self, text):
        return self.post("/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]

    def hidden_states(self, ids):
        """float32 [tokens, hidden]; a value that JSON cannot hold (NaN) arrives as null."""
        rows = self.post("/embedding", {"content": ids, "embd_normalize": -1})[0]["embedding"]
        states = np.array(rows, dtype=np.float32)
        if states.ndim != 2 or len(states) != len(ids):
            sys.exit(f"llama.cpp gave hidden states of shape {states.shape} for {len(ids)} tokens")
        return states

    def top(self, ids, n_probs, force, *, cache):
        """The log-probabilities after ``ids``: ({token: logprob} of the ``n_probs`` most likely and of ``force``).

        ``force`` is made the sampled token, since the server leaves the list out when the sampled token ends inside a
        character. The bias acts on the sampler only: the numbers are those of the model.
        """
        body = {
            "prompt": ids,
            "n_predict": 1,
            "n_probs": n_probs,
            "temperature": 0,
            "cache_prompt": cache,
            "logit_bias": [[force, 1e6]],
        }
        found = self.post("/completion", body).get("completion_probabilities")
        if not found:
            return None
        answer = {item["id"]: item["logprob"] for item in found[0]["top_logprobs"]}
        answer.setdefault(found[0]["id"], found[0]["logprob"])
        return answer

    def stop(self):
        self._server = None
        gc.collect()


class Head:
    """The output head of a GGUF file, dequantized piece by piece."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        fields = {name: field for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
        self._tensor = tensors.get("output.weight", tensors.get("token_embd.weight"))
        self.type = self._tensor.tensor_type
        self.vocab_size = int(self._tensor.shape[1])
        bias = tensors.get("output.bias")
        self._bias = None if bias is None else bias.data.astype(np.float32)
        arch = fields["general.architecture"].contents()
        self._scale = 1.0
        if f"{arch}.logit_scale" in fields:
            scale = float(fields[f"{arch}.logit_scale"].contents())
            # llama.cpp multiplies by it in the Cohere models and divides by it in Granite and MiniCPM.
            self._scale = scale if arch in ("command-r", "cohere2") else 1.0 / scale
        cap = fields.get(f"{arch}.final_logit_softcapping")
        self._cap = None if cap is None else float(cap.contents())

    def slices(self, rows):
        """(first token id, logits [rows, slice]) over the whole vocabulary."""
        data = self._tensor.data.reshape(self.vocab_size, -1)
        for first in range(0, self.vocab_size, HEAD_SLICE):
            weight = gguf.quants.dequantize(data[first : first + HEAD_SLICE], self.type).astype(np.float32, copy=False)
            logits = rows @ weight.T
            if self._bias is not None:
                logits += self._bias[first : first + HEAD_SLICE]
            logits *= self._scale
            if self._cap:
                logits = self._cap * np.tanh(logits / self._cap)
            yield first, logits

    def rounded(self, rows):
        """Hidden states as llama.cpp's CPU kernels see them for this type of head (ggml: ``vec_dot_type``)."""
        if self.type == Type.F32 or not len(rows):
            return rows
        if self.type == Type.F16:
            return rows.astype(np.float16).astype(np.float32)
        if self.type == Type.BF16:
            return (((rows.view(np.uint32) + 0x8000) >> 16) << 16).view(np.float32)
        if self.type in (Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.IQ4_NL):
            return gguf.quants.dequantize(gguf.quants.quantize(rows, Type.Q8_0), Type.Q8_0)
        if rows.shape[1] % 256:
            return rows
        blocks = rows.reshape(-1, 256)  # Q8_K: 256 values share one scale, the largest becomes -127
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
        scale = np.where(largest == 0, 1.0, largest / -127.0)
        return (np.minimum(np.rint(blocks / scale), 127) * scale).astype(np.float32).reshape(rows.shape)


def compared(head, rows, answers):
    """Mean |difference| of our log-probabilities and the engine's, over its most likely tokens; the worst position."""
    if not answers:
        return 0.0
    logits = np.concatenate([part for _, part in head.slices(rows)], axis=1).astype(np.float64)
    logprobs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    gaps = []
    for row, answer in zip(logprobs, answers, strict=True):
        best = sorted(answer, key=answer.get, reverse=True)[:CHECK_TOP]
        gaps.append(np.abs(row[best] - np.array([answer[i] for i in best])).mean())
    return float(np.max(gaps))


def self_check(server, tokens, force, usable):
    """Positions and the engine's own answers there. The prompt is one batch, as it was for the hidden states."""
    chunk = tokens.shape[1]
    places = []
    for i in range(CHECKS):
        row = chunk // 4 + i * (chunk - chunk // 4 - 1) // CHECKS
        if usable[i % tokens.shape[0], row]:
            places.append((i % tokens.shape[0], row))
    answers = [server.top(tokens[c, : r + 1].tolist(), CHECK_TOP, force, cache=False) for c, r in places]
    kept = [(place, answer) for place, answer in zip(places, answers, strict=True) if answer]
    return [place for place, _ in kept], [answer for _, answer in kept]


def from_hidden_states(head, rows, tokens, probes, target):
    """nll, top1 and probe logits of all rows, one pass over the head."""
    chunks, length = tokens.shape
    next_ids = tokens[:, 1:].reshape(-1)
    probe_index = probes[:, 0] * (length - 1) + probes[:, 1]
    total = np.full(len(rows), -np.inf)
    best, top1, wanted = np.full(len(rows), -np.inf), np.zeros(len(rows), np.int32), np.full(len(rows), np.nan)
    kept = np.zeros((len(probes), head.vocab_size), np.float32)
    for first, logits in head.slices(rows):
        progress(first, head.vocab_size, "logits")
        end = first + logits.shape[1]
        kept[:, first:end] = logits[probe_index]
        place = logits.argmax(1)
        value = np.take_along_axis(logits, place[:, None], 1)[:, 0]
        total = np.logaddexp(total, value + np.log(np.exp(logits - value[:, None]).sum(axis=1, dtype=np.float64)))
        top1, best = np.where(value > best, place + first, top1), np.maximum(best, value)
        here = (next_ids >= first) & (next_ids < end)
        wanted[here] = logits[here, next_ids[here] - first]
    nll = total - wanted
    kept -= kept.mean(axis=1, keepdims=True)  # a constant added to all logits means nothing
    np.save(target / "probe_logits.npy", np.clip(kept, -HALF_MAX, HALF_MAX).astype(np.float16))
    broken = ~np.isfinite(total)
    return nll.reshape(chunks, -1), top1.reshape(chunks, -1), int(broken.sum())


def from_server(server, tokens, probes, target, plain, vocab_size):
    """The slow way: the engine's own most likely tokens after each probe position."""
    chunks, length = tokens.shape
    nll, top1 = np.full((chunks, length - 1), np.nan), np.full((chunks, length - 1), -1)
    ids = np.full((len(probes), TOP_K), -1, np.int32)
    logprobs = np.full((len(probes), TOP_K), -np.inf, np.float32)
    broken = 0
    for i, (c, r) in enumerate(probes):
        progress(i, len(probes), "positions")
        prompt, wanted = tokens[c, : r + 1].tolist(), int(tokens[c, r + 1])
        answer = server.top(prompt, TOP_K, wanted, cache=True)
        if answer is None:  # the wanted token ends inside a character: ask for everything instead
            answer = server.top(prompt, vocab_size, plain, cache=True) or {}
        answer = {token: value for token, value in answer.items() if value is not None and np.isfinite(value)}
        best = sorted(answer, key=answer.get, reverse=True)
        if not best:
            broken += 1
            nll[c, r] = np.inf
            continue
        top1[c, r] = best[0]
        nll[c, r] = -answer.get(wanted, min(answer.values()))
        best = best[:TOP_K]
        ids[i, : len(best)], logprobs[i, : len(best)] = best, [answer[token] for token in best]
    np.save(target / "probe_top_ids.npy", ids)
    np.save(target / "probe_top_logprobs.npy", logprobs)
    return nll, top1, broken


def agreement(ours, theirs):
    """Share of token ids that two tokenizations of the same texts have in common, in order."""
    same = total = 0
    for a, b in zip(ours, theirs, strict=True):
        total += max(len(a), len(b))
        if a == b:
            same += len(a)
        else:
            same += sum(m.size for m in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    return same / total if total else 1.0


def evaluate(server, head, tokens, probes, target):
    """Hidden states of every chunk, the self-check, then the numbers by the method that it allows."""
    chunk = tokens.shape[1]
    states = []
    for number, row in enumerate(tokens):
        progress(number * chunk, tokens.size, "tokens")
        states.append(server.hidden_states(row.tolist())[:-1])
    rows = np.concatenate(states)
    finite = np.isfinite(rows).all(axis=1)
    plain = server.tokenize(" the")[-1]
    places, answers = self_check(server, tokens, plain, finite.reshape(-1, chunk - 1))
    checked = rows[[c * (chunk - 1) + r for c, r in places]]
    gaps = [compared(head, form, answers) for form in (head.rounded(checked), checked)]
    alike = gaps[0] <= gaps[1]
    said = {"self_check_difference": min(gaps), "self_check_positions": len(answers), "self_check_rounded": alike}
    if min(gaps) <= CHECK_TOLERANCE and (answers or not finite.any()):
        server.stop()  # its memory is free before ours is taken
        rows[finite] = head.rounded(rows[finite]) if alike else rows[finite]  # rounding would hide a NaN
        numbers = from_hidden_states(head, rows, tokens, probes, target)
        return numbers, said | {"method": "hidden_states"}
    numbers = from_server(server, tokens, probes, target, plain, head.vocab_size)
    server.stop()
    return numbers, said | {"method": "server_top_k"}


def main(payload):
    started = time.monotonic()
    reference, target = Path(payload["reference"]), Path(payload["target"])
    tokens, probes = np.load(reference / "tokens.npy"), np.load(reference / "probe_rows.npy")
    blocks = json.loads((reference / "blocks.json").read_text(encoding="utf-8"))
    progress(0, tokens.size, "loading model")
    head = Head(payload["model"])
    if tokens.max() >= head.vocab_size:
        sys.exit(
            f"the reference's tokens go up to id {tokens.max()}, this model's vocabulary ends at {head.vocab_size}\n"
            "fix: the GGUF file belongs to another model, or its conversion cut the vocabulary"
        )
    server = Server(payload["model"], payload.get("engine_args") or {}, tokens.shape[1])
    loaded = time.monotonic()
    agreed = agreement([server.tokenize(text) for text in blocks["texts"]], blocks["ids"])
    (nll, top1, broken), said = evaluate(server, head, tokens, probes, target)
    np.save(target / "nll.npy", nll.astype(np.float32))
    np.save(target / "top1.npy", top1.astype(np.int32))
    good = nll[np.isfinite(nll)]
    result = said | {
        "kind": "candidate",
        "engine": "llama.cpp",
        "engine_version": version("xllamacpp"),
        "head_type": head.type.name,
        "num_tokens": len(good),
        "num_chunks": int(tokens.shape[0]),
        "chunk": int(tokens.shape[1]),
        "num_probes": len(probes),
        "vocab_size": head.vocab_size,
        "perplexity": float(np.exp(good.mean())) if len(good) else None,
        "num_not_finite": broken,
        "tokenizer_agreement": agreed,
        "load_s": loaded - started,
        "seconds": time.monotonic() - loaded,
    }
    write_json(target / "dump.json", result)
    write_json(payload["result"], result)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
