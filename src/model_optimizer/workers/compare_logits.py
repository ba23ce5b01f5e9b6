"""Compare a candidate's numbers with the reference's, position by position.

Run as ``python compare_logits.py payload.json`` in an environment with numpy.
Payload: ``reference`` and ``candidate`` (folders, see transformers_logits.py), ``result`` (file).

The result's keys are those of the record AccuracyScore, plus ``method`` and ``kl_top_k``.

    perplexity        exp(mean nll) over the positions that both have
    ratio             exp(mean(nll_candidate - nll_reference)); interval: paired bootstrap over runs of BLOCK positions
    KL(ref || cand)   sum_v p_v (log p_v - log q_v), in nats, at the probes
                      From the k most likely tokens only: those k and one bucket for all others. Merging outcomes can
                      only lower a KL divergence, so that is a lower bound.
    relative L2       |cand - ref| / |ref| over the mean-centred logits of all probes

Where the candidate gave NaN or infinity it is scored as if it had said nothing, which is the uniform distribution.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np

BLOCK = 32  # positions; differences of neighbours are correlated, those of blocks hardly (docs/accuracy.md)
RESAMPLES = 2000
ROWS = 32  # probes whose whole distributions are in memory at once
REST_MIN = 1e-7  # what float32 log-probabilities can say about 1 minus their sum
NLL_MAX = 100.0  # a token called impossible costs this much, so that one of them does not make every mean infinite


def log_softmax(logits):
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def bootstrap(differences):
    """95 % interval of exp(mean difference): blocks of neighbouring positions drawn with replacement."""
    blocks = [part for part in np.split(differences, range(BLOCK, len(differences), BLOCK)) if len(part)]
    sums, sizes = np.array([part.sum() for part in blocks]), np.array([len(part) for part in blocks])
    draws = np.random.default_rng(0).integers(0, len(blocks), size=(RESAMPLES, len(blocks)))
    means = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    low, high = np.exp(np.clip(np.percentile(means, [2.5, 97.5]), -50, 50))
    return [float(low), float(high)]


def full_divergence(ref, cand):
    """(KL of each probe, relative L2) from whole distributions; of unequal vocabularies, the common prefix."""
    size = min(ref.shape[1], cand.shape[1])
    kl, gap, norm = [], 0.0, 0.0
    for first in range(0, len(ref), ROWS):
        r = np.array(ref[first : first + ROWS, :size], np.float64)
        c = np.array(cand[first : first + ROWS, :size], np.float64)
        broken = ~np.isfinite(c).all(axis=1)
        c[broken] = 0.0
        r -= r.mean(axis=1, keepdims=True)
        c -= c.mean(axis=1, keepdims=True)
        p, q = log_softmax(r), log_softmax(c)
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        gap += float(((c - r) ** 2).sum())
        norm += float((r**2).sum())
    return np.maximum(np.concatenate(kl), 0.0), math.sqrt(gap / norm) if norm else None


def top_divergence(ref, ids, logprobs):
    """KL of each probe over the tokens that the candidate named, and one bucket for all others."""
    kl = np.zeros(len(ref))
    for i in range(len(ref)):
        row = log_softmax(np.array(ref[i : i + 1], np.float64))[0]
        use = (ids[i] >= 0) & (ids[i] < len(row)) & np.isfinite(logprobs[i])
        if not use.any():
            kl[i] = math.log(len(row)) + float((np.exp(row) * row).sum())
            continue
        p, q = row[ids[i][use]], logprobs[i][use].astype(np.float64)
        rest_p, rest_q = max(1.0 - np.exp(p).sum(), 0.0), max(1.0 - np.exp(q).sum(), REST_MIN)
        rest = rest_p * (math.log(rest_p) - math.log(rest_q)) if rest_p > 0 else 0.0
        kl[i] = max(float((np.exp(p) * (p - q)).sum()) + rest, 0.0)
    return kl


def likelihoods(ref, cand, cand_info, vocab_size):
    """Paired nll over the positions that the candidate measured, broken ones as uniform."""
    measured = ~np.isnan(cand) if cand_info["method"] == "server_top_k" else np.ones(cand.shape, bool)
    r, c = ref[measured].astype(np.float64), cand[measured].astype(np.float64)
    c[~np.isfinite(c)] = math.log(vocab_size)
    return r, np.minimum(c, NLL_MAX)


def compare(reference, candidate):
    """All numbers of the two folders, as a JSON-able dict."""
    info = json.loads((reference / "dump.json").read_text(encoding="utf-8"))
    cand_info = json.loads((candidate / "dump.json").read_text(encoding="utf-8"))
    ref_logits = np.load(reference / "probe_logits.npy", mmap_mode="r")
    ref_nll, cand_nll = np.load(reference / "nll.npy"), np.load(candidate / "nll.npy")
    if ref_nll.shape != cand_nll.shape:
        sys.exit(
            f"the candidate holds {cand_nll.shape} positions, the reference {ref_nll.shape}\n"
            "fix: they are of different runs; compute the candidate's logits again"
        )
    r, c = likelihoods(ref_nll, cand_nll, cand_info, info["vocab_size"])
    ref_top, cand_top = np.load(reference / "top1.npy"), np.load(candidate / "top1.npy")
    named = cand_top >= 0
    whole = candidate / "probe_logits.npy"
    if whole.exists():
        kl, relative_l2 = full_divergence(ref_logits, np.load(whole, mmap_mode="r"))
        top_k = None
    else:
        ids = np.load(candidate / "probe_top_ids.npy")
        kl = top_divergence(ref_logits, ids, np.load(candidate / "probe_top_logprobs.npy"))
        relative_l2, top_k = None, ids.shape[1]
    return {
        "num_tokens": len(r),
        "reference_perplexity": float(np.exp(r.mean())),
        "perplexity": float(np.exp(c.mean())),
        "perplexity_ratio": float(np.exp((c - r).mean())),
        "perplexity_ci95": bootstrap(c - r),
        "top1_agreement": float((ref_top[named] == cand_top[named]).mean()) if named.any() else 0.0,
        "kl_mean": float(kl.mean()),
        "kl_p99": float(np.percentile(kl, 99)),
        "kl_is_lower_bound": top_k is not None,
        "logits_relative_l2": relative_l2,
        "num_not_finite": int(cand_info["num_not_finite"]),
        "tokenizer_agreement": cand_info.get("tokenizer_agreement"),
        "num_probe_positions": len(kl),
        "method": cand_info["method"],
        "kl_top_k": top_k,
    }


def main(payload):
    result = compare(Path(payload["reference"]), Path(payload["candidate"]))
    part = Path(f"{payload['result']}.part")
    part.write_text(json.dumps(result, indent=1), encoding="utf-8")
    part.replace(payload["result"])


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
