"""Greedy answers to a list of prompts, through a server's chat endpoint: what a user of the service would read."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from model_optimizer.errors import ServerUnusable
from model_optimizer.records.base import Emit
from model_optimizer.records.measurement import Generation


def generate(
    base_url: str, prompts: Sequence[str], *, emit: Emit, max_tokens: int = 32, timeout_s: float = 300.0
) -> tuple[Generation, ...]:
    """One answer a prompt, temperature 0. Raises ``ServerUnusable`` where the endpoint answers in another format."""
    answers = []
    model = str(_post(f"{base_url}/v1/models", None, timeout_s)["data"][0]["id"])
    for number, prompt in enumerate(prompts):
        emit("progress", what="answering prompts", done=number, total=len(prompts), unit="prompts")
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "seed": 0,
        }
        reply = _post(f"{base_url}/v1/chat/completions", body, timeout_s)
        try:
            choice = reply["choices"][0]
            answers.append(
                Generation(
                    prompt=prompt,
                    text=choice["message"]["content"] or "",
                    output_tokens=reply["usage"]["completion_tokens"],
                    finish_reason=choice.get("finish_reason"),
                )
            )
        except (KeyError, IndexError, TypeError) as error:
            raise ServerUnusable(
                "the chat endpoint's answer is not in the OpenAI format",
                cause=f"missing: {error}",
                fix="check that the URL is an OpenAI-compatible server",
                evidence=[json.dumps(reply)[:300]],
            ) from error
    return tuple(answers)


def _post(url: str, body: dict[str, object] | None, timeout_s: float) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 (http only)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310
            return json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            evidence = error.read(500).decode("utf-8", "replace")
        raise ServerUnusable(
            f"{url} answered {error.code}",
            cause=str(error.reason),
            fix="read the engine's own message below",
            evidence=[evidence],
        ) from error
    except (OSError, ValueError) as error:
        raise ServerUnusable(
            f"{url} gave no usable answer",
            cause=str(error),
            fix="the engine may have died while serving: see its log",
        ) from error
