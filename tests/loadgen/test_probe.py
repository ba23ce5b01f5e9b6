"""What the probe finds out, and how it refuses."""

from __future__ import annotations

import asyncio

import pytest

from model_optimizer.errors import ServerUnusable
from model_optimizer.loadgen.client import Api, Client
from model_optimizer.loadgen.http import Address
from model_optimizer.loadgen.probe import Dialect, ServerFacts, probe
from model_optimizer.records.workload import TrafficProfile
from tests.loadgen.conftest import mock_in_loop
from tests.mock_engine import KEY

TRAFFIC = TrafficProfile.model_validate({"prompt_tokens": {128: 0.9, 1024: 0.1}, "output_tokens": 50})


def silent(kind: str, **fields: object) -> None:
    pass


def find(*flags: object, model: str | None = None, api: Api | None = None, api_key: str | None = None) -> ServerFacts:
    async def main() -> ServerFacts:
        async with mock_in_loop("--ttft-ms", 5, "--itl-ms", 2, *flags) as engine:
            address = Address.parse(f"127.0.0.1:{engine.port}")
            async with Client(address, api_key=api_key, timeout_s=5.0) as client:
                return await probe(client, TRAFFIC, model=model, api=api, emit=silent)

    return asyncio.run(main())


def test_a_plain_server() -> None:
    facts = find()
    assert facts.dialect == Dialect(api="completions", model="mock")
    assert facts.usage_reported
    assert facts.word_fit.overhead_tokens == 1
    assert 0.02 < facts.expected_s < 2  # nominally 5 ms and 50 tokens of 2 ms


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("rejects_ignore_eos", {"extras": ("stream_options", "temperature")}),
        ("rejects_stream_options", {"extras": ("ignore_eos", "temperature")}),
        ("wants_max_completion_tokens", {"limit_field": "max_completion_tokens"}),
        ("chat_only", {"api": "chat"}),
    ],
)
def test_the_dialect_is_found(fault, expected) -> None:
    dialect = find("--fault", fault).dialect
    assert dialect == Dialect.model_validate({"api": "completions", "model": "mock"} | expected)


def test_two_refusals_on_the_way_are_no_problem() -> None:
    facts = find("--fault", "rejects_ignore_eos", "--fault", "rejects_stream_options", "--fault", "chat_only")
    assert facts.dialect == Dialect(api="chat", model="mock", extras=("temperature",))
    assert not facts.usage_reported


def test_chat_template_tokens_are_counted_as_overhead() -> None:
    assert find(api="chat").word_fit.overhead_tokens == 12


def test_without_usage_the_fit_is_a_guess() -> None:
    facts = find("--fault", "no_usage")
    assert not facts.usage_reported
    assert facts.word_fit.tokens_per_word == 1.15


def test_a_model_given_needs_no_list() -> None:
    assert find("--fault", "no_models", model="mock").dialect.model == "mock"


@pytest.mark.parametrize(
    ("fault", "what", "evidence"),
    [
        ("no_models", "does not say which model", "GET /v1/models → 404"),
        ("not_openai", "does not say which model", "GET /v1/models → 200 text/html: <html><body>Welcome to nginx!"),
        ("not_streaming", "does not answer as", "POST /v1/completions"),
        ("http_503", "does not answer as", "http_503: mock failure"),
        ("truncate", "does not answer as", "truncated"),
        ("needs_key", "refuses us", "GET /v1/models → 401"),
    ],
)
def test_an_unusable_server_is_told_with_evidence(fault, what, evidence) -> None:
    with pytest.raises(ServerUnusable, match=what) as caught:
        find("--fault", fault)
    assert any(evidence in line for line in caught.value.evidence)
    assert caught.value.fix


def test_the_right_key_opens_and_a_wrong_one_is_not_shown() -> None:
    assert find("--fault", "needs_key", api_key=KEY).dialect.api == "completions"
    with pytest.raises(ServerUnusable, match="refuses us") as caught:
        find("--fault", "needs_key", api_key="sk-wrong-key", model="mock")
    assert "sk-wrong-key" not in str(caught.value.as_dict())


def test_a_wrong_model_name_is_told_in_the_servers_words() -> None:
    with pytest.raises(ServerUnusable) as caught:
        find(model="gpt-17")
    assert any("'gpt-17' does not exist" in line for line in caught.value.evidence)


def test_nobody_there() -> None:
    async def main() -> None:
        async with mock_in_loop() as engine:
            port = engine.port
        async with Client(Address.parse(f"127.0.0.1:{port}")) as client:
            await probe(client, TRAFFIC, model=None, api=None, emit=silent)

    with pytest.raises(ServerUnusable, match="no server answers") as caught:
        asyncio.run(main())
    assert "refused" in caught.value.cause.lower() or "connect" in caught.value.cause.lower()
