"""What serves an artifact. Adding an engine: docs/adding-an-engine.md."""

from model_optimizer.engines import llama_cpp, transformers, vllm
from model_optimizer.engines.base import Engine

ENGINES: dict[str, Engine] = {"llama.cpp": llama_cpp, "vllm": vllm, "transformers": transformers}
