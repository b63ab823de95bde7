"""Writes a tiny Llama-shaped model with random weights as a GGUF file.

    python tiny_gguf.py FILE

Two blocks, 64 wide, a token for each byte and a few special ones: enough for a server to load it
and generate. What it says means nothing. The same file comes out every time. The format is that of
GGUF version 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

import random
import struct
import sys

WIDTH, HIDDEN, BLOCKS, HEADS, HEADS_KV, CONTEXT = 64, 128, 2, 4, 2, 512
HEAD = WIDTH // HEADS
SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
ALIGNMENT = 32
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
PLAIN, CONTROL = 1, 3
F32 = 0


def vocabulary():
    """The bytes, in the printable characters that byte-level vocabularies write them with. The
    first one is a plain letter: a sampler that finds only zeros picks it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(rest))]


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


FORMATS = {
    UINT32: lambda value: struct.pack("<I", value),
    INT32: lambda value: struct.pack("<i", value),
    FLOAT32: lambda value: struct.pack("<f", value),
    STRING: text,
}


def entry(key, kind, value):
    """A key with its value; a list is an array of that kind."""
    if isinstance(value, list):
        items = b"".join(map(FORMATS[kind], value))
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(value)) + items
    return text(key) + struct.pack("<I", kind) + FORMATS[kind](value)


def metadata():
    plain = vocabulary()
    first = len(plain)
    return [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, "tiny"),
        entry("general.alignment", UINT32, ALIGNMENT),
        entry("llama.context_length", UINT32, CONTEXT),
        entry("llama.embedding_length", UINT32, WIDTH),
        entry("llama.block_count", UINT32, BLOCKS),
        entry("llama.feed_forward_length", UINT32, HIDDEN),
        entry("llama.attention.head_count", UINT32, HEADS),
        entry("llama.attention.head_count_kv", UINT32, HEADS_KV),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        entry("llama.rope.dimension_count", UINT32, HEAD),
        entry("llama.rope.freq_base", FLOAT32, 10000.0),
        entry("tokenizer.ggml.model", STRING, "gpt2"),
        entry("tokenizer.ggml.pre", STRING, "llama-bpe"),
        entry("tokenizer.ggml.tokens", STRING, [*plain, *SPECIAL]),
        entry("tokenizer.ggml.token_type", INT32, [PLAIN] * first + [CONTROL] * len(SPECIAL)),
        entry("tokenizer.ggml.merges", STRING, []),
        entry("tokenizer.ggml.bos_token_id", UINT32, first),
        entry("tokenizer.ggml.eos_token_id", UINT32, first + 1),
        entry("tokenizer.ggml.eot_token_id", UINT32, first + 4),
    ]


def tensors():
    """Names and dimensions, the fastest first."""
    words = len(vocabulary()) + len(SPECIAL)
    yield "token_embd.weight", (WIDTH, words)
    for block in range(BLOCKS):
        yield f"blk.{block}.attn_norm.weight", (WIDTH,)
        yield f"blk.{block}.attn_q.weight", (WIDTH, HEADS * HEAD)
        yield f"blk.{block}.attn_k.weight", (WIDTH, HEADS_KV * HEAD)
        yield f"blk.{block}.attn_v.weight", (WIDTH, HEADS_KV * HEAD)
        yield f"blk.{block}.attn_output.weight", (HEADS * HEAD, WIDTH)
        yield f"blk.{block}.ffn_norm.weight", (WIDTH,)
        yield f"blk.{block}.ffn_gate.weight", (WIDTH, HIDDEN)
        yield f"blk.{block}.ffn_up.weight", (WIDTH, HIDDEN)
        yield f"blk.{block}.ffn_down.weight", (HIDDEN, WIDTH)
    yield "output_norm.weight", (WIDTH,)


def padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


def write(path):
    chance = random.Random(1)
    infos, data = [], b""
    for name, dimensions in tensors():
        count = 1
        for dimension in dimensions:
            count *= dimension
        infos.append(
            text(name)
            + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
            + struct.pack("<IQ", F32, len(data))
        )
        weights = (chance.gauss(0, 0.02) for _ in range(count))
        data = padded(data + struct.pack(f"<{count}f", *weights))
    entries = metadata()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries))
    with open(path, "wb") as file:
        file.write(padded(head + b"".join(entries) + b"".join(infos)) + data)


if __name__ == "__main__":
    write(sys.argv[1])
