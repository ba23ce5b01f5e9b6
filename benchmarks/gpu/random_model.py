"""A small model with random weights, to try a pipeline on a machine without a model hub: speed is real, text is not.

python random_model.py TOKENIZER_FOLDER TARGET      (needs torch and transformers)
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

source, target = Path(sys.argv[1]), Path(sys.argv[2])
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=49152,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=2,
)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.save_pretrained(target)
for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
    shutil.copyfile(source / name, target / name)
saved = json.loads((target / "config.json").read_text())
saved.setdefault("torch_dtype", "bfloat16")
(target / "config.json").write_text(json.dumps(saved, indent=1))
