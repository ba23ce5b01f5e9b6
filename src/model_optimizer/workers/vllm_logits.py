"""Run a Hugging Face folder in vLLM over a reference's tokens and write what it says.

Run as ``python vllm_logits.py payload.json`` in the ``vllm`` environment.
Payload: ``model`` (folder), ``reference`` (folder, see transformers_logits.py), ``target`` (folder to fill), ``result``
(file), ``engine_args`` (vLLM's own names, as for the server; those the offline engine does not know are left out).

vLLM gives for every prompt token its own log-probability and those of the TOP_K most likely ones: nll and top1 are
exact at every position, the distributions at the probes are cut off after TOP_K (the comparison says so).
Writes nll.npy, top1.npy, probe_top_ids.npy, probe_top_logprobs.npy, dump.json.
"""

import dataclasses
import json
import os
import sys
import time
from difflib import SequenceMatcher
from pathlib import Path

TOP_K = 256


def progress(done, total, what):
    print("@progress " + json.dumps({"done": done, "total": total, "what": what}), flush=True)


def write_json(path, value):
    """Last of all, and by rename: a file that exists is complete."""
    part = Path(f"{path}.part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


def load(payload, chunk):
    """The offline engine with the server's settings, for one sequence of a chunk at a time."""
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    args = {name: value for name, value in (payload.get("engine_args") or {}).items() if name in known}
    args |= {
        "model": payload["model"],
        "max_model_len": chunk + 8,
        "max_num_batched_tokens": max(chunk + 8, 512),
        "max_num_seqs": 1,
        "max_logprobs": TOP_K,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    return LLM(**args)


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


def run(llm, tokens, probes):
    """(nll, top1, top ids, top log-probabilities, broken positions)."""
    import numpy as np
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=TOP_K, flat_logprobs=True, detokenize=False)
    chunks, length = tokens.shape
    nll, top1 = np.zeros((chunks, length - 1), np.float32), np.zeros((chunks, length - 1), np.int32)
    ids, logprobs = np.full((len(probes), TOP_K), -1, np.int32), np.full((len(probes), TOP_K), -np.inf, np.float32)
    index = {(int(c), int(r)): i for i, (c, r) in enumerate(probes)}
    broken = 0
    for chunk, row in enumerate(tokens):
        progress(chunk * length, tokens.size, "tokens")
        answer = llm.generate({"prompt_token_ids": row.tolist()}, asked, use_tqdm=False)[0].prompt_logprobs
        for position in range(1, length):  # entry p is about token p, given those before it
            first, end = answer.start_indices[position], answer.end_indices[position]
            here_ids = np.array(answer.token_ids[first:end], np.int64)
            here = np.array(answer.logprobs[first:end], np.float32)
            nll[chunk, position - 1] = -here[0]  # the token itself comes first, then the most likely ones
            top1[chunk, position - 1] = here_ids[1]
            bad = bool(np.isnan(here).any())
            broken += bad
            probe = index.get((chunk, position - 1))
            if probe is not None and not bad:
                ids[probe, : end - first - 1], logprobs[probe, : end - first - 1] = here_ids[1:], here[1:]
    progress(tokens.size, tokens.size, "tokens")
    return nll, top1, ids, logprobs, broken


def main(payload):
    import numpy as np

    reference, target = Path(payload["reference"]), Path(payload["target"])
    tokens, probes = np.load(reference / "tokens.npy"), np.load(reference / "probe_rows.npy")
    blocks = json.loads((reference / "blocks.json").read_text(encoding="utf-8"))
    started = time.monotonic()
    progress(0, tokens.size, "loading model")
    llm = load(payload, tokens.shape[1])
    loaded = time.monotonic()
    config = llm.llm_engine.model_config
    tokenizer = llm.get_tokenizer()
    nll, top1, ids, logprobs, broken = run(llm, tokens, probes)
    for name, values in (("nll", nll), ("top1", top1), ("probe_top_ids", ids), ("probe_top_logprobs", logprobs)):
        np.save(target / f"{name}.npy", values)
    import vllm

    good = nll[np.isfinite(nll)].astype(np.float64)
    ours = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in blocks["texts"]]
    result = {
        "kind": "candidate",
        "engine": "vllm",
        "engine_version": vllm.__version__,
        "method": "prompt_logprobs",
        "dtype": str(config.dtype).removeprefix("torch."),
        "num_tokens": int(nll.size),
        "num_chunks": int(tokens.shape[0]),
        "chunk": int(tokens.shape[1]),
        "num_probes": len(probes),
        "vocab_size": int(config.get_vocab_size()),
        "perplexity": float(np.exp(good.mean())) if len(good) else None,
        "num_not_finite": broken,
        "tokenizer_agreement": agreement(ours, blocks["ids"]),
        "load_s": loaded - started,
        "seconds": time.monotonic() - loaded,
    }
    write_json(target / "dump.json", result)
    write_json(payload["result"], result)


if __name__ == "__main__":  # vLLM starts its own processes by importing this file again
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if hasattr(os, "sched_getaffinity"):  # on a CPU, vLLM's own choice keeps one core back
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
