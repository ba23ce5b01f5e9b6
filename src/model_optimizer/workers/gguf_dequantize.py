"""Turn a GGUF file into a Hugging Face folder in bfloat16: weights, config, generation config, tokenizer.

Run as ``python gguf_dequantize.py payload.json`` in the ``transformers`` environment.
Payload: ``model`` (the GGUF file), ``dtype`` (``bfloat16``, ``float16``, ``float32``), ``target`` (folder), ``result``.

Weights and shape are read by transformers. Everything around them comes from the GGUF's own metadata, because the
transformers reader loses part of it: it swaps the llama tokenizer's bos and eos, ignores how the vocabulary splits
digits, and ignores RoPE scaling. The files are written so that transformers 4 reads them correctly too.
"""

import json
import math
import sys
import time
from pathlib import Path

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

# tokenizer.ggml.pre -> how text is cut before byte-pair merging. Names as llama.cpp writes them.
# "add_bos" is llama.cpp's default where the file does not say.
PRE_TOKENIZERS = {
    "gpt-2": {},
    "smollm": {"digits": True},
    "llama-bpe": {"split": LLAMA3_SPLIT, "ignore_merges": True, "add_bos": True},
    "llama3": {"split": LLAMA3_SPLIT, "ignore_merges": True, "add_bos": True},
    "qwen2": {"split": QWEN2_SPLIT, "nfc": True},
}
CONTROL, USER_DEFINED = 3, 4  # token types of the GGUF format


def progress(done, total, what):
    print("@progress " + json.dumps({"done": done, "total": total, "what": what}), flush=True)


def fail(what, fix):
    sys.exit(f"{what}\nfix: {fix}")


def read_metadata(path):
    """All key-value pairs, and the tensors by name."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def rope_scaling(fields, tensors):
    """RoPE scaling that the file asks for, as a Hugging Face ``rope_scaling`` mapping; ``None`` without scaling.

    Llama 3.x files hold the result of their scaling as one factor a frequency and not its four parameters. Two
    parameter sets were published; the one that gives the same factors is taken, anything else is refused.
    """
    arch = fields["general.architecture"]
    kind = fields.get(f"{arch}.rope.scaling.type", "none")
    original = fields.get(f"{arch}.rope.scaling.original_context_length")
    if kind in ("linear", "yarn"):
        found = {"rope_type": kind, "factor": float(fields[f"{arch}.rope.scaling.factor"])}
        return found | ({"original_max_position_embeddings": int(original)} if original else {})
    if any(name.startswith("rope_factors_") for name in tensors) or kind not in ("none", "default", ""):
        fail(
            f"this GGUF scales RoPE in a way that cannot be carried over ({kind})",
            "start from the model's Hugging Face folder",
        )
    if "rope_freqs.weight" not in tensors:
        return None
    factors = [float(x) for x in tensors["rope_freqs.weight"].data]
    base = float(fields[f"{arch}.rope.freq_base"])
    for factor in (8.0, 32.0):
        expected = llama3_factors(len(factors), base, factor)
        if all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(expected, factors, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
    return fail("this GGUF has RoPE factors of an unknown kind", "start from the model's Hugging Face folder")


def llama3_factors(count, base, factor, low=1.0, high=4.0, original=8192):
    """What each RoPE frequency is divided by: 1 for wavelengths below original/high, ``factor`` above original/low."""
    factors = []
    for i in range(count):
        wavelength = 2 * math.pi * base ** (i / count)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1.0 / ((1 - smooth) / factor + smooth))
    return factors


def build_tokenizer(fields, path, notes):
    """The ``tokenizers`` object of the file's vocabulary."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    rule = PRE_TOKENIZERS.get(pre)
    if kind != "gpt2" or rule is None:
        from transformers import AutoTokenizer

        if kind == "gpt2":
            notes.append(
                f"pre-tokenizer {pre!r} is not known here: transformers' own reading of the vocabulary is used"
            )
        return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).backend_tokenizer
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.get("ignore_merges", False)))
    steps = []
    if rule.get("digits"):
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if "split" in rule:
        steps.append(pre_tokenizers.Split(Regex(rule["split"]), behavior="isolated"))
    prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex="split" not in rule))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if rule.get("nfc"):
        tokenizer.normalizer = normalizers.NFC()
    types = fields.get("tokenizer.ggml.token_type", [])
    added = [(token, kind) for token, kind in zip(tokens, types, strict=False) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in added if k == CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t, k in added if k == USER_DEFINED])
    return tokenizer


def special_tokens(fields):
    """Hugging Face name -> token text, from the ids in the metadata."""
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    found = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for key, name in names.items()}
    return {name: tokens[i] for name, i in found.items() if i is not None and i < len(tokens)}


def write_tokenizer(fields, path, target, notes):
    """tokenizer.json, tokenizer_config.json and the chat template."""
    from tokenizers import processors

    tokenizer = build_tokenizer(fields, path, notes)
    specials = special_tokens(fields)
    rule = PRE_TOKENIZERS.get(fields.get("tokenizer.ggml.pre", "gpt-2"), {})
    is_llama = fields.get("tokenizer.ggml.model") == "llama"
    add_bos = fields.get("tokenizer.ggml.add_bos_token", rule.get("add_bos", is_llama))
    if add_bos and "bos_token" in specials:
        bos = specials["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos}:1 $B:1",
            special_tokens=[(bos, tokenizer.token_to_id(bos))],
        )
    tokenizer.save(str(target / "tokenizer.json"))
    arch = fields["general.architecture"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # exists in transformers 4 and 5
        "model_max_length": int(fields.get(f"{arch}.context_length", 2**31)),
        "clean_up_tokenization_spaces": False,
        **specials,
    }
    template = fields.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template  # transformers < 4.43 and several servers read it only from here
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        notes.append("the file has no chat template")
    write_json(target / "tokenizer_config.json", config)


def eos_ids(fields):
    """End of text and, where the file has one, end of turn: generation stops at either."""
    ids = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(int(i) for i in ids if i is not None))


def fix_config(target, fields, tensors, architecture, dtype):
    """Rewrite config.json and generation_config.json so that transformers 4 and 5 read the same model."""
    path = target / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [architecture]
    config["dtype"] = config["torch_dtype"] = dtype
    rope = config.get("rope_parameters") or {}
    plain = rope.get("full_attention", rope)  # models with two kinds of layers hold one mapping for each
    scaling = rope_scaling(fields, tensors)
    if scaling and plain.get("rope_type", "default") == "default":
        plain.update(scaling)
    if "rope_theta" in plain:
        config["rope_theta"] = plain["rope_theta"]
    if "sliding_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"].get("rope_theta", 10000.0)
    scaled = {key: value for key, value in plain.items() if key != "rope_theta"}
    config["rope_scaling"] = None if plain.get("rope_type", "default") == "default" else scaled
    ends = eos_ids(fields)
    generation = {"bos_token_id": fields.get("tokenizer.ggml.bos_token_id"), "do_sample": False}
    if ends:
        config["eos_token_id"] = generation["eos_token_id"] = ends[0] if len(ends) == 1 else ends
        generation["pad_token_id"] = fields.get("tokenizer.ggml.padding_token_id", ends[0])
    write_json(path, config)
    write_json(target / "generation_config.json", {k: v for k, v in generation.items() if v is not None})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_weights(path, target, dtype):
    """Dequantize and save the weights; returns the model class's name."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            dtype=getattr(torch, dtype),
            quantization_config=GgufConfig(dequantize=True),  # a GPU kernel would keep the blocks packed
        )
    except ValueError as error:
        fail(f"transformers cannot read this GGUF: {error}", "start from the model's Hugging Face folder")
    progress(2, 4, "writing safetensors")
    # It is an ordinary dense model by now; only the marks of where it came from forbid saving it.
    model.hf_quantizer = None
    model.is_quantized = False
    model.quantization_method = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    bad = [name for name, tensor in model.state_dict().items() if not torch.isfinite(tensor).all()]
    if bad:
        fail(f"weights with NaN or infinity: {', '.join(bad[:5])}", "the GGUF file is damaged: fetch it again")
    model.save_pretrained(str(target), max_shard_size="5GB")
    return type(model).__name__


def check(target, fields):
    """Read the tokenizer back as a user would."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target))
    expected = fields.get("tokenizer.ggml.eos_token_id")
    if expected is not None and tokenizer.eos_token_id != expected:
        fail(f"the tokenizer ends with token {tokenizer.eos_token_id}, the file says {expected}", "report this file")
    text = "The year 1984, naïve 你好 \n\tx = 3.14"
    if tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) != text:
        fail("the tokenizer does not give back the text it was given", "start from the model's Hugging Face folder")


def main():
    payload = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    started, notes = time.monotonic(), []
    path, target = Path(payload["model"]), Path(payload["target"])
    dtype = payload.get("dtype", "bfloat16")
    progress(0, 4, "reading GGUF metadata")
    fields, tensors = read_metadata(path)
    rope_scaling(fields, tensors)  # refuse before minutes are spent
    progress(1, 4, "dequantizing")
    architecture = write_weights(path, target, dtype)
    fix_config(target, fields, tensors, architecture, dtype)
    progress(3, 4, "writing tokenizer")
    write_tokenizer(fields, path, target, notes)
    check(target, fields)
    progress(4, 4, "done")
    result = {"main": "", "notes": notes, "seconds": time.monotonic() - started, "architecture": architecture}
    temporary = Path(payload["result"] + ".part")
    write_json(temporary, result)
    temporary.replace(payload["result"])


if __name__ == "__main__":
    main()
