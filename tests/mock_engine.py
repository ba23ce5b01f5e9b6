"""A MOCK engine for tests: an OpenAI-compatible server with a known latency model and faults on request. No model
inside.

    python tests/mock_engine.py --port 0 --ttft-ms 50 --itl-ms 10 --slots 4 --fault http_500 --every 5

prints ``listening on 127.0.0.1:PORT`` and serves until it is killed. First token after ``ttft_ms`` +
``ms_per_prompt_token`` per uncached prompt token, counted from when one of ``slots`` is free; then one token every
``itl_ms``, on an absolute schedule. Its tokenizer makes one token of every six letters of a word. It has a prefix
cache of 16-token blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import re
import time

FAULTS = (
    "http_500", "http_503", "drop", "stall", "truncate", "cut_chunk", "garbage", "error_in_stream", "empty",
    "no_usage", "no_done", "odd_sse", "one_piece", "not_streaming", "not_openai", "chat_only", "needs_key",
    "rejects_ignore_eos", "rejects_stream_options", "wants_max_completion_tokens", "no_models", "reasoning",
)  # fmt: skip
NOW_AND_THEN = {"http_500", "http_503", "drop", "stall", "truncate", "cut_chunk", "garbage", "error_in_stream", "empty"}
KEY = "sk-mock-secret"
BLOCK = 16
CUT = b"50\r\ndata: {"  # the beginning of a chunk whose end never comes


class Refused(Exception):
    """An HTTP error answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class MockEngine:
    """The whole server. ``port`` is known after ``start``."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.faults: set[str] = set(options.fault)
        self.slots = asyncio.Semaphore(options.slots)
        self.running = self.waiting = self.served = 0
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.blocks: set[int] = set()
        self.lateness_s: list[float] = []
        self.port = 0

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self.connection, "127.0.0.1", self.options.port, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, _ = head.split("\r\n")[0].split(" ")
            found = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(found[1])) if found else b""
            await self.answer(method, path, head, body, writer)
        except Refused as error:
            text = json.dumps({"error": {"message": str(error), "code": error.status}}).encode()
            self.whole(writer, error.status, "application/json", text)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def whole(self, writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
        writer.write(
            f"HTTP/1.1 {status} Mock\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )

    async def answer(self, method: str, path: str, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if "not_openai" in self.faults:
            self.whole(writer, 200, "text/html", b"<html><body>Welcome to nginx!</body></html>")
            return
        if "needs_key" in self.faults and f"Bearer {KEY}" not in head:
            sent = re.search(r"authorization: *bearer *(.*)", head, re.IGNORECASE)
            raise Refused(401, f"Incorrect API key provided: {sent[1].strip() if sent else 'none'}")
        if (method, path) == ("GET", "/health"):
            self.whole(writer, 200, "text/plain", b"")
        elif (method, path) == ("GET", "/metrics"):
            self.whole(writer, 200, "text/plain", self.metrics().encode())
        elif (method, path) == ("GET", "/v1/models") and "no_models" not in self.faults:
            models = {"object": "list", "data": [{"id": self.options.model, "object": "model"}]}
            self.whole(writer, 200, "application/json", json.dumps(models).encode())
        elif (method, path) == ("POST", "/v1/chat/completions"):
            await self.complete(json.loads(body), True, writer)
        elif (method, path) == ("POST", "/v1/completions") and "chat_only" not in self.faults:
            await self.complete(json.loads(body), False, writer)
        else:
            raise Refused(404, f"no such path: {path}")

    def metrics(self) -> str:
        late = sorted(self.lateness_s) or [0.0]
        return (
            f'vllm:num_requests_running{{model_name="mock"}} {self.running}.0\n'
            f'vllm:num_requests_waiting{{model_name="mock"}} {self.waiting}.0\n'
            f'vllm:kv_cache_usage_perc{{model_name="mock"}} {self.running / self.options.slots}\n'
            f'vllm:num_preemptions_total{{model_name="mock"}} 0.0\n'
            f'vllm:prefix_cache_queries_total{{model_name="mock"}} {self.prompt_tokens}.0\n'
            f'vllm:prefix_cache_hits_total{{model_name="mock"}} {self.cached_tokens}.0\n'
            f"mock:first_token_lateness_p50_seconds {late[len(late) // 2]:.6f}\n"
            f"mock:first_token_lateness_p99_seconds {late[int(len(late) * 0.99)]:.6f}\n"
        )

    def check(self, request: dict, chat: bool) -> None:
        if "rejects_ignore_eos" in self.faults and "ignore_eos" in request:
            raise Refused(400, "Unrecognized request argument supplied: ignore_eos")
        if "rejects_stream_options" in self.faults and "stream_options" in request:
            raise Refused(422, "extra fields not permitted: stream_options")
        if "wants_max_completion_tokens" in self.faults and "max_tokens" in request:
            raise Refused(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        if request.get("model") != self.options.model:
            raise Refused(404, f"The model {request.get('model')!r} does not exist.")

    def count(self, text: str, chat: bool) -> tuple[int, int]:
        """Prompt tokens, and those of them that the prefix cache has."""
        tokens = [piece for word in text.split() for piece in re.findall(r".{1,6}", word)]
        num_tokens = len(tokens) + (12 if chat else 1)
        if num_tokens > self.options.max_model_len:
            raise Refused(400, f"maximum context length is {self.options.max_model_len} tokens, got {num_tokens}")
        cached, prefix = 0, 0
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            prefix = hash((prefix, *tokens[at : at + BLOCK]))
            if prefix in self.blocks and cached == at:
                cached = at + BLOCK
            self.blocks.add(prefix)
        return num_tokens, cached

    async def complete(self, request: dict, chat: bool, writer: asyncio.StreamWriter) -> None:
        self.check(request, chat)
        self.served += 1
        now = self.served % self.options.every == 0
        faults = {fault for fault in self.faults if now or fault not in NOW_AND_THEN}
        if "http_500" in faults or "http_503" in faults:
            raise Refused(500 if "http_500" in faults else 503, "mock failure")
        if "drop" in faults:
            return
        num_prompt, cached = self.count(request["messages"][0]["content"] if chat else request["prompt"], chat)
        self.prompt_tokens += num_prompt
        self.cached_tokens += cached
        num_output = request.get("max_tokens") or request.get("max_completion_tokens") or 16
        if not request.get("ignore_eos"):
            num_output = min(num_output, self.options.eos_after)
        usage = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if "not_streaming" in faults or not request.get("stream"):
            reply = {"choices": [{"text": "word " * num_output, "finish_reason": "length"}], "usage": usage}
            self.whole(writer, 200, "application/json", json.dumps(reply).encode())
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.waiting += 1
        async with self.slots:
            self.waiting -= 1
            self.running += 1
            try:
                first_s = self.options.ttft_ms + self.options.ms_per_prompt_token * (num_prompt - cached)
                script = self.script(num_output, first_s / 1e3, chat, faults)
                if "odd_sse" in faults:
                    await self.play_oddly(writer, script)
                elif not await Player(writer, script, self.options.stamp, self.lateness_s).ended:
                    return
            finally:
                self.running -= 1
        self.output_tokens += num_output
        last = []
        if "no_usage" not in faults and (request.get("stream_options") or {}).get("include_usage"):
            last.append(json.dumps({"choices": [], "usage": usage}).encode())
        if "no_done" not in faults:
            last.append(b"[DONE]")
        await self.play_oddly(writer, [(0.0, event) for event in last], odd="odd_sse" in faults)
        writer.write(b"0\r\n\r\n")

    def script(self, num_output: int, first_s: float, chat: bool, faults: set[str]) -> list[tuple[float, bytes]]:
        """The events of an answer, each with its moment after the start; an empty one means: close the connection."""
        itl_s = self.options.itl_ms / 1e3
        text = b" word" if "empty" not in faults else b""
        field = b"reasoning_content" if "reasoning" in faults else b"content"
        piece = b'"delta":{"%s":"%%s"}' % field if chat else b'"text":"%s"'
        event = b'{"id":"cmpl-mock","object":"chunk","model":"mock","choices":[{"index":0,' + piece
        middle, end = b',"logprobs":null,"finish_reason":null}]}', b',"logprobs":null,"finish_reason":"length"}]}'
        if "one_piece" in faults:
            return [(first_s + (num_output - 1) * itl_s, event % (text * num_output) + end)]
        events = [(first_s + token * itl_s, event % text + middle) for token in range(num_output)]
        events[-1] = (events[-1][0], event % text + end)
        if chat:
            role = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
            events.insert(0, (0.0, role))
        at_s, cut = events[min(self.options.fault_after, len(events) - 1)][0], self.options.fault_after
        if "stall" in faults:
            events[cut:] = [(3600.0, b"")]
        if "garbage" in faults:
            events.insert(cut, (at_s, b'{"choices":[{"te'))
        if "error_in_stream" in faults:
            events.insert(cut, (at_s, b'{"error":{"message":"the engine core died","code":500}}'))
        if "truncate" in faults:
            events[cut:] = [(at_s, b"")]
        if "cut_chunk" in faults:
            events[-1] = (events[-1][0], CUT)
        return events

    async def play_oddly(
        self, writer: asyncio.StreamWriter, script: list[tuple[float, bytes]], odd: bool = True
    ) -> None:
        """CRLF, comments, other fields, no space after the colon, and chunks cut anywhere; or, where not odd, plain."""
        start = time.perf_counter()
        for at_s, payload in script:
            await asyncio.sleep(max(0.0, start + at_s - time.perf_counter()))
            if not odd:
                writer.write(chunk(b"data: " + payload + b"\n\n"))
                continue
            event = b": ping\r\n\r\nevent: message\r\ndata:" + payload + b"\r\n\r\n"
            for at in range(0, len(event), 7):
                writer.write(chunk(event[at : at + 7], b";odd=1"))
                await asyncio.sleep(0)


class Player:
    """Writes the events of a script at their moments. Callbacks instead of a task: cheap enough for 200 streams."""

    def __init__(
        self, writer: asyncio.StreamWriter, script: list[tuple[float, bytes]], stamp: bool, lateness_s: list[float]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[bool] = self.loop.create_future()
        self.writer, self.script, self.stamp, self.lateness_s = writer, script, stamp, lateness_s
        self.start, self.at = self.loop.time(), 0
        self.wait()

    def wait(self) -> None:
        self.loop.call_at(self.start + self.script[self.at][0], self.play)

    def play(self) -> None:
        due, payload = self.script[self.at]
        if self.ended.done():  # cancelled
            return
        if self.at == 0:
            self.lateness_s.append(self.loop.time() - self.start - due)
        if not payload or payload == CUT or self.writer.is_closing():
            self.writer.write(payload)
            self.ended.set_result(False)
            return
        if self.stamp:
            payload = payload.replace(b"{", b'{"sent_s":%.7f,' % time.perf_counter(), 1)
        self.writer.write(chunk(b"data: " + payload + b"\n\n"))
        self.at += 1
        if self.at == len(self.script):
            self.ended.set_result(True)
        else:
            self.wait()


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """One chunk of an HTTP body."""
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a mock engine for tests")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="mock")
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--ms-per-prompt-token", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=5.0)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--eos-after", type=int, default=math.inf, help="answers end here unless ignore_eos")
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument("--fault", action="append", choices=FAULTS, default=[])
    parser.add_argument("--every", type=int, default=1, help="every n-th request has the fault, where it can be so")
    parser.add_argument("--fault-after", type=int, default=2, help="tokens sent before the fault")
    parser.add_argument("--stamp", action="store_true", help="tell in each event when it was written")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    engine = MockEngine(options)
    async with await engine.start() as server:
        print(f"listening on 127.0.0.1:{engine.port}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    gc.disable()  # its pauses would be mistaken for the client's
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parse()))
