"""The comparison on distributions whose distance is known, and on sabotaged ones."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the comparison runs in a tool's environment, which has numpy")

WORKERS = Path(__file__).parents[2] / "src" / "model_optimizer" / "workers"
CHUNKS, LENGTH, VOCAB, PROBES = 4, 129, 200, 64


def worker(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, WORKERS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare_logits = worker("compare_logits")


class Texts:
    """Random tokens and the logits of an imaginary model for every position."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.tokens = rng.integers(0, VOCAB, size=(CHUNKS, LENGTH)).astype(np.int32)
        self.logits = rng.normal(0, 3, size=(CHUNKS, LENGTH - 1, VOCAB))
        spread = np.linspace(0, CHUNKS * (LENGTH - 1) - 1, PROBES).round().astype(int)
        self.probes = np.stack([spread // (LENGTH - 1), spread % (LENGTH - 1)], axis=1)

    def write(self, folder: Path, logits: Any, *, top_k: int | None = None, **info: Any) -> Path:
        """A folder as the workers write it: the reference's, or a candidate's."""
        folder.mkdir()
        total = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
        nll = total - np.take_along_axis(logits, self.tokens[:, 1:, None].astype(int), -1)[..., 0]
        np.save(folder / "nll.npy", nll.astype(np.float32))
        np.save(folder / "top1.npy", logits.argmax(-1).astype(np.int32))
        rows = logits[self.probes[:, 0], self.probes[:, 1]]
        if top_k is None:
            centred = rows - rows.mean(-1, keepdims=True)
            np.save(folder / "probe_logits.npy", np.clip(centred, -65504, 65504).astype(np.float16))
        else:
            ids = np.argsort(-rows, axis=1)[:, :top_k].astype(np.int32)
            logprobs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
            np.save(folder / "probe_top_ids.npy", ids)
            np.save(folder / "probe_top_logprobs.npy", np.take_along_axis(logprobs, ids, 1).astype(np.float32))
        said = {"vocab_size": VOCAB, "num_not_finite": 0, "method": "logits", "tokenizer_agreement": 1.0} | info
        (folder / "dump.json").write_text(json.dumps(said))
        return folder


@pytest.fixture
def texts() -> Texts:
    return Texts()


@pytest.fixture
def compared(texts: Texts, tmp_path: Path) -> Any:
    reference = texts.write(tmp_path / "reference", texts.logits)

    def run(logits: Any, **how: Any) -> dict[str, Any]:
        number = len(list(tmp_path.iterdir()))
        return dict(compare_logits.compare(reference, texts.write(tmp_path / f"c{number}", logits, **how)))

    return run


def test_a_model_is_no_distance_from_itself(texts: Texts, compared: Any):
    found = compared(texts.logits)
    assert found["num_tokens"] == CHUNKS * (LENGTH - 1) and found["num_probe_positions"] == PROBES
    assert found["perplexity"] == found["reference_perplexity"]
    assert (found["perplexity_ratio"], found["top1_agreement"]) == (1.0, 1.0)
    assert found["perplexity_ci95"] == [1.0, 1.0]
    assert (found["kl_mean"], found["logits_relative_l2"]) == (0.0, 0.0)
    assert found["kl_is_lower_bound"] is False


def test_a_shift_of_all_logits_means_nothing(texts: Texts, compared: Any):
    shift = np.random.default_rng(1).normal(0, 50, size=(*texts.logits.shape[:2], 1))
    found = compared(texts.logits + shift)
    assert found["perplexity_ratio"] == pytest.approx(1.0, abs=1e-6)
    assert found["top1_agreement"] == 1.0
    assert found["kl_mean"] < 1e-5 and found["logits_relative_l2"] < 1e-3


def test_scaled_logits_keep_top1_and_fail_the_rest(texts: Texts, compared: Any):
    """A wrong temperature or norm leaves the most likely token where it is: agreement alone would not see it."""
    found = compared(texts.logits * 0.5)
    assert found["top1_agreement"] == 1.0
    assert found["kl_mean"] > 0.3
    assert found["logits_relative_l2"] == pytest.approx(0.5, abs=1e-3)


def test_noise_costs_half_its_variance(texts: Texts, compared: Any):
    """Independent noise of variance s² on the logits costs s²/2 · (1 − Σp²) nats, to first order."""
    noise = np.random.default_rng(2).normal(0, 0.1, size=texts.logits.shape)
    p = np.exp(texts.logits) / np.exp(texts.logits).sum(-1, keepdims=True)
    expected = 0.005 * (1 - (p**2).sum(-1).mean())
    assert compared(texts.logits + noise)["kl_mean"] == pytest.approx(expected, rel=0.15)


def test_another_models_logits_fail_everything(texts: Texts, compared: Any):
    found = compared(Texts(seed=9).logits)
    assert found["top1_agreement"] < 0.05 and found["kl_mean"] > 3


def test_kl_by_hand(tmp_path: Path):
    p, q = np.log([[0.5, 0.25, 0.25]]), np.log([[0.25, 0.5, 0.25]])
    kl, _ = compare_logits.full_divergence(p, q)
    assert kl[0] == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))
    # Of the candidate only the second token is known: {0.25, rest 0.75} against {0.5, rest 0.5}.
    named = compare_logits.top_divergence(p, np.array([[1]]), q[:, 1:2])
    assert named[0] == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert named[0] < kl[0]


def test_top_k_is_a_lower_bound_that_grows_with_k(texts: Texts, compared: Any):
    other = texts.logits + np.random.default_rng(3).normal(0, 0.5, size=texts.logits.shape)
    exact = compared(other)["kl_mean"]
    bounds = [compared(other, top_k=k) for k in (1, 20, VOCAB - 1)]
    assert all(found["kl_is_lower_bound"] and found["logits_relative_l2"] is None for found in bounds)
    values = [found["kl_mean"] for found in bounds]
    assert values == sorted(values) and values[-1] <= exact + 1e-5  # whole logits are kept in float16
    assert values[-1] == pytest.approx(exact, rel=0.01)
    assert [found["kl_top_k"] for found in bounds] == [1, 20, VOCAB - 1]


def test_nan_counts_as_saying_nothing(texts: Texts, compared: Any):
    broken = texts.logits.copy()
    broken[:] = np.nan
    found = compared(broken, num_not_finite=broken.shape[0] * broken.shape[1])
    assert found["num_not_finite"] == CHUNKS * (LENGTH - 1)
    assert found["perplexity"] == pytest.approx(VOCAB)
    p = np.exp(texts.logits) / np.exp(texts.logits).sum(-1, keepdims=True)
    entropy = -(p * np.log(p)).sum(-1)[texts.probes[:, 0], texts.probes[:, 1]]
    assert found["kl_mean"] == pytest.approx(math.log(VOCAB) - entropy.mean(), rel=1e-3)


def test_one_broken_chunk_is_not_averaged_away(texts: Texts, compared: Any):
    broken = texts.logits.copy()
    broken[0] = np.nan
    found = compared(broken, num_not_finite=LENGTH - 1)
    assert all(math.isfinite(value) for value in (found["perplexity"], found["kl_mean"], found["logits_relative_l2"]))
    assert found["kl_mean"] > 0.3 and found["top1_agreement"] < 0.8


def test_a_ruled_out_token_is_no_nan(texts: Texts, compared: Any):
    ruled = texts.logits.copy()
    ruled[..., 0] = -1e30
    found = compared(ruled)
    assert math.isfinite(found["kl_mean"]) and found["num_not_finite"] == 0


def test_a_padded_vocabulary_is_compared_where_both_have_tokens():
    p = np.random.default_rng(4).normal(size=(3, 10))
    kl, relative = compare_logits.full_divergence(p, np.concatenate([p, np.full((3, 2), -60000.0)], axis=1))
    assert kl.max() < 1e-12 and relative < 1e-12


def test_positions_that_a_slow_engine_left_out_are_left_out(texts: Texts, tmp_path: Path):
    reference = texts.write(tmp_path / "r", texts.logits)
    candidate = texts.write(tmp_path / "c", texts.logits, top_k=20, method="server_top_k")
    nll, top1 = np.load(candidate / "nll.npy"), np.load(candidate / "top1.npy")
    keep = np.zeros(nll.shape, bool)
    keep[texts.probes[:, 0], texts.probes[:, 1]] = True
    np.save(candidate / "nll.npy", np.where(keep, nll, np.nan).astype(np.float32))
    np.save(candidate / "top1.npy", np.where(keep, top1, -1).astype(np.int32))
    found = compare_logits.compare(reference, candidate)
    assert found["num_tokens"] == PROBES
    assert found["perplexity"] == pytest.approx(found["reference_perplexity"])
    assert found["top1_agreement"] == 1.0


def test_the_interval_holds_the_truth_about_as_often_as_promised():
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(100):
        low, high = compare_logits.bootstrap(rng.normal(0.01, 0.3, size=4088))
        held += low <= math.exp(0.01) <= high
    assert held >= 88


def test_folders_of_different_runs_are_refused(texts: Texts, tmp_path: Path):
    reference = texts.write(tmp_path / "r", texts.logits)
    candidate = texts.write(tmp_path / "c", texts.logits)
    np.save(candidate / "nll.npy", np.zeros((1, 5), np.float32))
    with pytest.raises(SystemExit, match="different runs"):
        compare_logits.compare(reference, candidate)


def test_the_result_is_a_score(texts: Texts, tmp_path: Path):
    from model_optimizer.evaluators.logits import score

    reference = texts.write(tmp_path / "r", texts.logits)
    candidate = texts.write(tmp_path / "c", texts.logits * 1.01)
    result = tmp_path / "result.json"
    compare_logits.main({"reference": str(reference), "candidate": str(candidate), "result": str(result)})
    made = score(json.loads(result.read_text()))
    assert made.num_probe_positions == PROBES and made.kl_mean > 0


transformers_logits = worker("transformers_logits")


def test_chunks_do_not_overlap_and_each_begins_with_bos():
    chunks = transformers_logits.cut(list(range(100, 140)), [1], 8, 24)
    assert chunks.tolist() == [[1, *range(100, 107)], [1, *range(107, 114)], [1, *range(114, 121)]]
    without = transformers_logits.cut(list(range(20)), [], 8, 100)
    assert without.tolist() == [list(range(8)), list(range(8, 16))]


def test_a_text_shorter_than_a_chunk_is_one_chunk():
    assert transformers_logits.cut([5, 6, 7], [1], 512, 4096).tolist() == [[1, 5, 6, 7]]


def test_tokenizer_agreement():
    agreement = transformers_logits.agreement
    assert agreement([[1, 2, 3]], [[1, 2, 3]]) == 1.0
    assert agreement([[1, 2, 3, 4]], [[1, 9, 3, 4]]) == 0.75
    assert agreement([[1, 2, 3], [4]], [[1, 2, 3], [4, 5]]) == pytest.approx(0.8)  # one more token shifts all others
    assert agreement([[7, 8]], [[1, 2]]) == 0.0
