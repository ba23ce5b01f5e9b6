"""What turns one artifact into another: quantization and conversion. A new one: a module and a line in the table."""

from model_optimizer.transforms import gguf_convert, gguf_dequantize, gguf_quantize
from model_optimizer.transforms.base import Transform

TRANSFORMS: dict[str, Transform] = {
    "gguf_dequantize": gguf_dequantize,
    "gguf_convert": gguf_convert,
    "gguf_quantize": gguf_quantize,
}
