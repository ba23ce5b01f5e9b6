"""An OpenAI-compatible server around plain Hugging Face transformers: the baseline everything is compared with.

Run as ``python transformers_server.py --model FOLDER --port N ...`` in the ``transformers`` environment. Answers on
127.0.0.1: /health, /v1/models, /v1/completions, /v1/chat/completions (streaming, ``usage``, ``ignore_eos``).

Requests are served one after another, as a script around transformers would. The decode loop is written out here and
keeps the model's own KV cache; it is faster than ``generate()``, so the baseline is not made weak on purpose.
(``transformers serve`` 5.17 is not used because it rejects ``ignore_eos``: answers of fixed length need it.)
"""

import argparse
import json
import os
import queue
import signal
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache


class RequestError(Exception):
    """The request cannot be served as written; answered with status 400."""


class Detokenizer:
    """Turns tokens into text piece by piece; a character that spans tokens is held back until it is whole."""

    def __init__(self, tokenizer):
        self.tokenizer, self.tokens, self.start, self.shown = tokenizer, [], 0, 0

    def add(self, token):
        self.tokens.append(token)
        before = self.tokenizer.decode(self.tokens[self.start : self.shown], skip_special_tokens=True)
        after = self.tokenizer.decode(self.tokens[self.start :], skip_special_tokens=True)
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        self.start, self.shown = self.shown, len(self.tokens)
        return after[len(before) :]


class Generation:
    """One request on its way through the queue. ``output`` carries (text, finish reason or ``None``)."""

    def __init__(self, body, prompt_ids, max_tokens):
        self.prompt_ids, self.max_tokens = prompt_ids, max_tokens
        self.temperature = float(body.get("temperature", 1.0))
        self.top_p = float(body.get("top_p", 1.0))
        self.seed = body.get("seed")
        self.ignore_eos = bool(body.get("ignore_eos", False))
        stop = body.get("stop") or []
        self.stop = [stop] if isinstance(stop, str) else list(stop)
        self.output, self.cancelled, self.num_tokens = queue.SimpleQueue(), False, 0


class Model:
    """The model, and the one thread that runs it."""

    def __init__(self, arguments):
        self.name, self.max_model_len = arguments.served_model_name, arguments.max_model_len
        self.device = arguments.device
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        remote = arguments.trust_remote_code
        self.tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=remote)
        self.model = AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=getattr(torch, arguments.dtype), trust_remote_code=remote
        )
        self.model = self.model.to(self.device).eval()
        ends = self.model.generation_config.eos_token_id
        self.eos_ids = set(ends if isinstance(ends, list) else [ends]) - {None}
        self.waiting = queue.SimpleQueue()

    def run_forever(self):
        while True:
            request = self.waiting.get()
            try:
                self.generate(request)
            except Exception as error:  # noqa: BLE001 - the client must hear of it, the next request is served
                print(f"request failed: {type(error).__name__}: {error}", flush=True)
                request.output.put(("", "error"))

    @torch.inference_mode()
    def generate(self, request):
        generator = torch.Generator(self.device)
        if request.seed is not None:
            generator.manual_seed(int(request.seed))
        else:
            generator.seed()
        detokenizer, text = Detokenizer(self.tokenizer), ""
        cache = DynamicCache(config=self.model.config)
        step = torch.tensor([request.prompt_ids], device=self.device)
        while not request.cancelled:
            logits = self.model(step, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
            token = pick(logits, request, generator)
            request.num_tokens += 1
            if token in self.eos_ids and not request.ignore_eos:
                return request.output.put(("", "stop"))
            piece = detokenizer.add(token)
            text += piece
            cut = min((i for i in (text.find(s) for s in request.stop) if i >= 0), default=-1)
            if cut >= 0:
                return request.output.put((piece[: max(0, cut - len(text) + len(piece))], "stop"))
            if request.num_tokens >= request.max_tokens:
                return request.output.put((piece, "length"))
            if piece:
                request.output.put((piece, None))
            step = torch.tensor([[token]], device=self.device)
        return None

    def request(self, body, is_chat):
        """Checks the body and turns it into a generation."""
        if is_chat:
            if not self.tokenizer.chat_template:
                raise RequestError("this model has no chat template: use /v1/completions")
            if not isinstance(body.get("messages"), list):
                raise RequestError("messages: a list is required")
            encoded = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=True)
            ids = encoded["input_ids"]
        else:
            prompt = body.get("prompt")
            if isinstance(prompt, str):
                ids = self.tokenizer(prompt)["input_ids"]
            elif isinstance(prompt, list) and all(isinstance(i, int) for i in prompt):
                ids = prompt
            else:
                raise RequestError("prompt: one string or one list of token ids is required")
        if not ids:
            raise RequestError("the prompt is empty")
        room = self.max_model_len - len(ids)
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or (room if is_chat else 16)
        if asked > room:
            raise RequestError(f"{len(ids)} prompt + {asked} answer tokens exceed the context of {self.max_model_len}")
        return Generation(body, ids, int(asked))


def pick(logits, request, generator):
    """The next token: the most likely one at temperature 0, else a sample."""
    if request.temperature <= 0:
        return int(logits.argmax())
    shares = torch.softmax(logits.float() / request.temperature, dim=-1)
    if request.top_p < 1:
        ordered, order = shares.sort(descending=True)
        ordered[ordered.cumsum(-1) - ordered > request.top_p] = 0
        shares = torch.zeros_like(shares).scatter(0, order, ordered)
    return int(torch.multinomial(shares, 1, generator=generator))


class Handler(BaseHTTPRequestHandler):
    """HTTP in front of the queue; one thread a connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    model = None

    def log_message(self, *_):
        """No line a request: stdout is a log that people read."""

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/health":
            self.answer(200, {"status": "ok"})
        elif self.path == "/v1/models":
            entry = {"id": self.model.name, "object": "model", "max_model_len": self.model.max_model_len}
            self.answer(200, {"object": "list", "data": [entry]})
        else:
            self.answer(404, {"error": {"message": f"no such path: {self.path}"}})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_chat = self.path == "/v1/chat/completions"
        if not is_chat and self.path != "/v1/completions":
            return self.answer(404, {"error": {"message": f"no such path: {self.path}"}})
        try:
            body = json.loads(raw)
            request = self.model.request(body, is_chat)
        except (RequestError, ValueError, TypeError) as error:
            return self.answer(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
        self.model.waiting.put(request)
        try:
            return self.stream(body, request, is_chat) if body.get("stream") else self.whole(request, is_chat)
        except (BrokenPipeError, ConnectionResetError):
            request.cancelled = True  # the client is gone: the next request need not wait
            self.close_connection = True
            return None

    def envelope(self, is_chat, is_chunk):
        kind = ("chat.completion.chunk" if is_chunk else "chat.completion") if is_chat else "text_completion"
        identity = ("chatcmpl-" if is_chat else "cmpl-") + uuid.uuid4().hex
        return {"id": identity, "object": kind, "created": int(time.time()), "model": self.model.name}

    def whole(self, request, is_chat):
        text, reason = "", None
        while reason is None:
            piece, reason = request.output.get()
            text += piece
        if reason == "error":
            return self.answer(500, {"error": {"message": "generation failed; see the server's log"}})
        content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        choice = {"index": 0, "finish_reason": reason, **content}
        return self.answer(200, self.envelope(is_chat, False) | {"choices": [choice], "usage": usage(request)})

    def stream(self, body, request, is_chat):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        envelope, reason = self.envelope(is_chat, True), None
        while reason is None:
            piece, reason = request.output.get()
            content = {"delta": {"content": piece} if piece else {}} if is_chat else {"text": piece}
            self.event(envelope | {"choices": [{"index": 0, "finish_reason": reason, **content}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event(envelope | {"choices": [], "usage": usage(request)})
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def usage(request):
    prompt, answer = len(request.prompt_ids), request.num_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--trust-remote-code", action="store_true")
    return parser.parse_args()


def main():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    Handler.model = Model(arguments)
    threading.Thread(target=Handler.model.run_forever, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    server.daemon_threads = True
    print(f"listening on http://127.0.0.1:{arguments.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
