"""Run a Hugging Face model over the evaluation text and write what it says: the reference, or a candidate.

Run as ``python transformers_logits.py payload.json`` in the ``transformers`` environment.
Payload: ``model`` (folder), ``target`` (folder to fill), ``result`` (file), ``engine_args`` (``dtype``, ``device``,
``n_threads``, ``trust_remote_code``, ``attn_implementation``), and one of
  ``reference``: folder of a reference: its tokens are run and the numbers are a candidate's;
  ``blocks`` (texts), ``eval_tokens``, ``chunk``, ``probes``: these texts are tokenized, the numbers are the reference.

A reference folder holds (P probes, V vocabulary, C chunks of L tokens; every chunk is a sequence of its own)
  tokens.npy      int32 [C, L]     token ids; a BOS leads each chunk where the tokenizer adds one
  nll.npy         float32 [C, L-1] -log p(token r+1 | tokens 0..r) in nats, for every row r
  top1.npy        int32 [C, L-1]   most likely next token
  probe_rows.npy  int32 [P, 2]     (chunk, row) of the probes, evenly spread
  probe_logits.npy float16 [P, V]  logits minus their mean; NaN rows where the model gave NaN or infinity
  probe_logsumexp.npy float32 [P], probe_top_ids.npy int32 [P, 64], probe_top_logprobs.npy float32 [P, 64]
  blocks.json     the texts that were used and their token ids
  dump.json       everything of result.json
A candidate folder holds nll.npy, top1.npy, dump.json and either probe_logits.npy or the two probe_top files.
"""

import json
import os
import sys
import time
from difflib import SequenceMatcher
from pathlib import Path

TOP = 64
SLICE = 128  # rows whose log-softmax is taken at once: bounds memory to SLICE x V floats beside the logits
HALF_MAX = 65504.0


def progress(done, total, what):
    print("@progress " + json.dumps({"done": done, "total": total, "what": what}), flush=True)


def write_json(path, value):
    """Last of all, and by rename: a file that exists is complete."""
    part = Path(f"{path}.part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


def fits_float32(folder):
    """The reference is computed in float32 where memory allows, even if it is served in 16 bits.

    Its weights are then twice as large as the files (16-bit there); a fifth more for what else is needed.
    """
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    try:
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(meminfo["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return False
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and limit.read_text().strip().isdigit():
        available = min(available, int(limit.read_text()))
    return 2 * weights * 1.2 + 2**30 < available


def load(payload):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    args = payload.get("engine_args") or {}
    if args.get("n_threads"):
        torch.set_num_threads(int(args["n_threads"]))
    remote = bool(args.get("trust_remote_code", False))
    dtype = str(args.get("dtype", "float32"))
    device = str(args.get("device") or "auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not payload.get("reference") and device == "cpu" and fits_float32(Path(payload["model"])):
        dtype = "float32"
    options = {"dtype": getattr(torch, dtype), "trust_remote_code": remote}
    if args.get("attn_implementation"):
        options["attn_implementation"] = str(args["attn_implementation"])
    progress(0, 1, "loading model")
    tokenizer = AutoTokenizer.from_pretrained(payload["model"], trust_remote_code=remote)
    model = AutoModelForCausalLM.from_pretrained(payload["model"], **options)
    return tokenizer, model.eval().to(device), dtype


def leading_bos(tokenizer):
    """The BOS id, if the tokenizer puts one in front of a text by itself."""
    ids = tokenizer("a")["input_ids"]
    return [ids[0]] if ids and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id else []


def encode(tokenizer, text):
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def cut(ids, bos, chunk, eval_tokens):
    """Chunks of equal length without overlap, each led by ``bos``. The tail that fills no chunk is left out."""
    import numpy as np

    chunk = min(chunk, eval_tokens, len(ids) + len(bos))
    body = chunk - len(bos)
    count = max(1, min(eval_tokens // chunk, len(ids) // body))
    rows = [bos + ids[i * body : (i + 1) * body] for i in range(count)]
    return np.array(rows, dtype=np.int32)


def new_reference(payload, tokenizer, limit):
    """Tokenize the texts, block by block so that every engine can repeat it, as far as the tokens are needed."""
    import numpy as np

    bos = leading_bos(tokenizer)
    texts, block_ids, ids = [], [], []
    for text in payload["blocks"]:
        if len(ids) >= payload["eval_tokens"]:
            break
        texts.append(text)
        block_ids.append(encode(tokenizer, text))
        ids += block_ids[-1]
    tokens = cut(ids, bos, min(payload["chunk"], limit), payload["eval_tokens"])
    rows = tokens.shape[1] - 1
    spread = np.unique(np.linspace(0, tokens.shape[0] * rows - 1, payload["probes"]).round().astype(np.int64))
    probes = np.stack([spread // rows, spread % rows], axis=1).astype(np.int32)
    return tokens, probes, {"texts": texts, "ids": block_ids}


def read_reference(folder):
    import numpy as np

    blocks = json.loads((folder / "blocks.json").read_text(encoding="utf-8"))
    return np.load(folder / "tokens.npy"), np.load(folder / "probe_rows.npy"), blocks


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


class Dump:
    """Collects the numbers row by row; only the probes keep their whole logits."""

    def __init__(self, tokens, probes, vocab_size):
        import numpy as np

        self.nll = np.zeros((tokens.shape[0], tokens.shape[1] - 1), np.float32)
        self.top1 = np.zeros(self.nll.shape, np.int32)
        self.logits = np.zeros((len(probes), vocab_size), np.float16)
        self.logsumexp = np.zeros(len(probes), np.float32)
        self.top_ids = np.zeros((len(probes), min(TOP, vocab_size)), np.int32)
        self.top_logprobs = np.zeros(self.top_ids.shape, np.float32)
        self.num_not_finite = 0
        self.probes = {(int(c), int(r)): i for i, (c, r) in enumerate(probes)}

    def add(self, chunk, first_row, logits, next_ids):
        """``logits``: rows of a chunk from ``first_row`` on, float32; ``next_ids``: the tokens they should predict."""
        import torch

        # A row is broken by a NaN, by +inf, or if all of it is -inf; a single -inf is a token that is ruled out.
        broken = torch.isnan(logits).any(1) | ~torch.isfinite(logits.max(1).values)
        self.num_not_finite += int(broken.sum())
        logsumexp = torch.logsumexp(logits, 1)
        nll = logsumexp - logits.gather(1, next_ids[:, None])[:, 0]
        end = first_row + len(logits)
        self.nll[chunk, first_row:end] = nll.cpu().numpy()
        self.top1[chunk, first_row:end] = logits.argmax(1).cpu().numpy()
        for row in range(len(logits)):
            index = self.probes.get((chunk, first_row + row))
            if index is not None:
                self._probe(index, logits[row], float(logsumexp[row]), bool(broken[row]))

    def _probe(self, index, logits, logsumexp, broken):
        import torch

        if broken:
            self.logits[index], self.logsumexp[index], self.top_logprobs[index] = (
                float("nan"),
                float("nan"),
                float("nan"),
            )
            return
        # Centred, because a constant added to all logits means nothing; it also keeps float16 where it is precise.
        centre = logits[torch.isfinite(logits)].mean()
        self.logits[index] = (logits - centre).clamp(-HALF_MAX, HALF_MAX).cpu().numpy()
        self.logsumexp[index] = logsumexp - float(centre)
        top = torch.topk(logits, self.top_ids.shape[1])
        self.top_ids[index] = top.indices.cpu().numpy()
        self.top_logprobs[index] = (top.values - logsumexp).cpu().numpy()

    def save(self, target):
        import numpy as np

        for name in ("nll", "top1"):
            np.save(target / f"{name}.npy", getattr(self, name))
        for name in ("logits", "logsumexp", "top_ids", "top_logprobs"):
            np.save(target / f"probe_{name}.npy", getattr(self, name))


def run(model, tokens, probes):
    import torch

    dump = None
    with torch.inference_mode():
        for chunk, row in enumerate(tokens):
            progress(chunk * tokens.shape[1], tokens.size, "tokens")
            ids = torch.from_numpy(row.astype("int64"))[None].to(model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
            dump = dump or Dump(tokens, probes, logits.shape[1])
            for first in range(0, len(logits), SLICE):
                part = logits[first : first + SLICE].float()
                dump.add(chunk, first, part, ids[0, first + 1 : first + 1 + len(part)])
    progress(tokens.size, tokens.size, "tokens")
    return dump


def main(payload):
    import numpy as np
    import transformers

    target = Path(payload["target"])
    started = time.monotonic()
    tokenizer, model, dtype = load(payload)
    loaded = time.monotonic()
    if payload.get("reference"):
        tokens, probes, blocks = read_reference(Path(payload["reference"]))
        kind = "candidate"
    else:
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or payload["chunk"]
        tokens, probes, blocks = new_reference(payload, tokenizer, limit)
        kind = "reference"
        np.save(target / "tokens.npy", tokens)
        np.save(target / "probe_rows.npy", probes)
        (target / "blocks.json").write_text(json.dumps(blocks, ensure_ascii=False), encoding="utf-8")
    dump = run(model, tokens, probes)
    dump.save(target)
    good = dump.nll[np.isfinite(dump.nll)].astype(np.float64)
    result = {
        "kind": kind,
        "engine": "transformers",
        "engine_version": transformers.__version__,
        "method": "logits",
        "dtype": dtype,
        "device": str(model.device),
        "num_tokens": int(dump.nll.size),
        "num_chunks": int(tokens.shape[0]),
        "chunk": int(tokens.shape[1]),
        "num_probes": len(probes),
        "vocab_size": int(dump.logits.shape[1]),
        "perplexity": float(np.exp(good.mean())) if len(good) else None,
        "num_not_finite": dump.num_not_finite,
        "tokenizer_agreement": agreement([encode(tokenizer, text) for text in blocks["texts"]], blocks["ids"]),
        "load_s": loaded - started,
        "seconds": time.monotonic() - loaded,
    }
    if kind == "reference" and dump.num_not_finite:
        sys.exit(
            f"the unoptimised model itself gives NaN or infinite logits at {dump.num_not_finite} of {dump.nll.size} "
            f"positions in {dtype}\nfix: the checkpoint may be damaged, or activations overflow {dtype}; try float32"
        )
    write_json(target / "dump.json", result)
    write_json(payload["result"], result)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
