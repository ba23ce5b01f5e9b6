"""A folder that describes Qwen3-8B's shape with weight files that are holes: for engines that fill weights themselves
(vLLM --load-format dummy). Headers, sizes and names are those of the real model; speed is real, text is not.

python sparse_model.py CONFIG_AND_TOKENIZER_FOLDER TARGET        (standard library only, takes no disk space)
"""

import json
import shutil
import struct
import sys
from pathlib import Path

SHARDS = 4


def tensors(config):
    """Name → shape, in the order of the layers."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    found = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (queries, hidden),
            f"{at}.self_attn.k_proj.weight": (keys, hidden),
            f"{at}.self_attn.v_proj.weight": (keys, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, queries),
            f"{at}.self_attn.q_norm.weight": (head,),
            f"{at}.self_attn.k_norm.weight": (head,),
            f"{at}.mlp.gate_proj.weight": (ffn, hidden),
            f"{at}.mlp.up_proj.weight": (ffn, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, ffn),
        }
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def size(shape):
    """Bytes in bfloat16."""
    count = 2
    for length in shape:
        count *= length
    return count


def write_shard(path, shapes):
    """A safetensors header, then a hole as long as the weights would be."""
    header, at = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size(shape)]}
        at += size(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return at


def main():
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        shutil.copyfile(file, target / file.name)
    shapes = list(tensors(json.loads((source / "config.json").read_text())).items())
    each, index, total = -(-len(shapes) // SHARDS), {}, 0
    for number in range(SHARDS):
        name = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = dict(shapes[number * each : (number + 1) * each])
        total += write_shard(target / name, part)
        index |= dict.fromkeys(part, name)
    (target / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )


if __name__ == "__main__":
    main()
