"""The search: valid and new settings only, learns where the engine dies, finds the better corner, repeats itself."""

from __future__ import annotations

from model_optimizer.records.tuning import Parameter, Settings
from model_optimizer.tuning.search import Search

SLOTS = Parameter(name="max_num_seqs", values=(16, 32, 64, 128, 256), default=256)
BUDGET = Parameter(name="max_num_batched_tokens", values=(512, 1024, 2048, 4096, 8192), default=8192)
CHUNKED = Parameter(name="enable_chunked_prefill", values=(True, False), default=True, is_ordered=False)
THRESHOLD = Parameter(
    name="long_prefill_token_threshold", values=(0, 256, 512), default=0, needs={"enable_chunked_prefill": True}
)


def fits(settings: Settings) -> str | None:
    slots, budget = settings.get("max_num_seqs", 256), settings.get("max_num_batched_tokens", 8192)
    return "fewer tokens than sequences" if int(budget) < int(slots) * 4 else None


def goodput(settings: Settings) -> float:
    slots = int(settings.get("max_num_seqs", 256))
    budget = int(settings.get("max_num_batched_tokens", 8192))
    return 10.0 - abs(slots - 64) / 32 - abs(budget - 2048) / 2048


def run(trials: int, seed: int = 0) -> tuple[list[Settings], Search]:
    search = Search((SLOTS, BUDGET), invalid=fits, seed=seed)
    asked: list[Settings] = []
    search.tell({}, goodput({}))
    for _ in range(trials):
        settings = search.ask()
        if settings is None:
            break
        asked.append(settings)
        search.tell(settings, goodput(settings))
    return asked, search


def test_every_proposal_is_valid_and_new_until_the_space_is_exhausted() -> None:
    asked, _ = run(100)
    keys = [tuple(sorted(s.items())) for s in asked]
    assert len(keys) == len(set(keys))
    assert () not in keys  # the default was told
    valid = [(s, b) for s in SLOTS.values for b in BUDGET.values if int(b) >= int(s) * 4]
    assert len(asked) == len(valid) - 1
    assert all(fits(settings) is None for settings in asked)


def test_equal_answers_get_equal_questions() -> None:
    assert run(8)[0] == run(8)[0]
    assert run(8, seed=1)[0] != run(8)[0]


def test_better_settings_come_sooner_than_by_chance() -> None:
    best: Settings = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    places = [run(100, seed)[0].index(best) for seed in range(8)]
    space = len(run(100)[0])
    assert sum(places) / len(places) < 0.45 * space  # by chance it is half of the space


def test_where_the_engine_dies_is_avoided() -> None:
    search = Search((SLOTS, BUDGET), invalid=lambda _: None, seed=3)
    search.tell({}, 1.0)
    dead = 0
    for number in range(20):
        settings = search.ask()
        assert settings is not None
        if int(settings.get("max_num_seqs", 256)) >= 128:
            dead += number >= 8
            search.tell_failed(settings)
        else:
            search.tell(settings, goodput(settings))
    assert dead <= 5  # 12 proposals after the eighth, of which chance would lose about 5


def test_a_parameter_without_its_need_is_left_out() -> None:
    search = Search((CHUNKED, THRESHOLD), invalid=lambda _: None)
    combinations = list(search.all_valid(("enable_chunked_prefill", "long_prefill_token_threshold")))
    without = [s for s in combinations if s.get("enable_chunked_prefill") is False]
    assert without and all("long_prefill_token_threshold" not in settings for settings in without)
    assert {} in combinations  # all at the engine's default


def test_importance_names_the_parameter_that_matters() -> None:
    search = Search((SLOTS, BUDGET), invalid=lambda _: None, seed=0)
    for slots in SLOTS.values:
        for budget in (1024, 2048, 4096):
            search.tell({"max_num_seqs": slots, "max_num_batched_tokens": budget}, float(slots))
    importance = search.importance()
    assert importance["max_num_seqs"] > 5 * importance["max_num_batched_tokens"]
    assert Search((SLOTS,), invalid=fits).importance() == {}


def test_a_default_outside_of_the_values_can_be_told() -> None:
    odd = Parameter(name="n_parallel", values=(1, 2, 4), default=None)
    search = Search((odd,), invalid=lambda _: None)
    search.tell({}, 1.0)
    search.tell_predicted({"n_parallel": 1}, 0.1)
    found = {str(search.ask()) for _ in range(1)}
    assert found <= {"{'n_parallel': 2}", "{'n_parallel': 4}"}
