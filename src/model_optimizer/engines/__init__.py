"""What turns an artifact into a server. A new engine: a module here, its line in the table, a test."""

from model_optimizer.engines import llama_cpp, transformers, vllm
from model_optimizer.engines.base import Engine

ENGINES: dict[str, Engine] = {
    "llama.cpp": llama_cpp,
    "vllm": vllm,
    "transformers": transformers,
}
