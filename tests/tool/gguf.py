"""GGUF files of small Llama-like models with the standard library only."""

import array
import random
import struct

F32, F16, Q8_0, I8 = 0, 1, 8, 24
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, x):
    if kind == STRING:
        return string(x)
    if kind == ARRAY:  # of strings, or of whole numbers
        if x and isinstance(x[0], str):
            return struct.pack("<IQ", STRING, len(x)) + b"".join(map(string, x))
        return struct.pack("<IQ", 5, len(x)) + struct.pack(f"<{len(x)}i", *x)
    return struct.pack({UINT32: "<I", FLOAT32: "<f", BOOL: "<?"}[kind], x)


def to_file(metadata, tensors, alignment=32):
    """`metadata`: {key: (kind, value)}; `tensors`: {name: (type, shape, bytes)}, the last dimension varies fastest."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, (kind, x) in metadata.items():
        head += string(key) + struct.pack("<I", kind) + value(kind, x)
    data = b""
    for name, (kind, shape, block) in tensors.items():
        data += bytes(-len(data) % alignment)
        head += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += block
    return head + bytes(-len(head) % alignment) + data


TOKENS = ["<|end|>", "a", "b", "\u0120", "ab"]


def llama(hidden=64, heads=4, kv_heads=2, intermediate=96, layers=2, vocabulary=40, seed=1, tied=False):
    """(metadata, tensors, {name in a checkpoint: values}): matrices of the layers in Q8_0, all else in F32."""
    rng = random.Random(seed)
    head = hidden // heads
    metadata = {
        "general.architecture": (STRING, "llama"), "general.name": (STRING, "caf\u00e9 \u2603"),
        "llama.block_count": (UINT32, layers), "llama.context_length": (UINT32, 512),
        "llama.embedding_length": (UINT32, hidden), "llama.feed_forward_length": (UINT32, intermediate),
        "llama.attention.head_count": (UINT32, heads), "llama.attention.head_count_kv": (UINT32, kv_heads),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5), "llama.rope.freq_base": (FLOAT32, 10000.0),
        "tokenizer.ggml.model": (STRING, "gpt2"), "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (ARRAY, TOKENS), "tokenizer.ggml.token_type": (ARRAY, [3, 1, 1, 1, 1]),
        "tokenizer.ggml.merges": (ARRAY, ["a b"]), "tokenizer.ggml.bos_token_id": (UINT32, 0),
        "tokenizer.ggml.eos_token_id": (UINT32, 0)}
    tensors, values = {}, {}

    def f32(gguf, name, shape):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = array.array("f", [rng.gauss(0, 0.1) for _ in range(count)])
        tensors[gguf] = (F32, shape, numbers.tobytes())
        values[name] = (shape, numbers.tolist())

    def q8_0(gguf, name, rows, columns, turned=0):
        """`turned`: the number of heads whose rows llama.cpp has in another order."""
        blocks, matrix = b"", []
        for _ in range(rows):
            row = []
            for _ in range(columns // 32):
                scale = 2.0 ** rng.randrange(-9, -5)  # so that every product is exact
                codes = [rng.randrange(-128, 128) for _ in range(32)]
                blocks += struct.pack("<e32b", scale, *codes)
                row += [scale * code for code in codes]
            matrix.append(row)
        if turned:
            size = rows // turned
            there = [h * size + 2 * j + i for h in range(turned) for i in range(2) for j in range(size // 2)]
            matrix = [matrix[at] for at in there]
        tensors[gguf] = (Q8_0, [rows, columns], blocks)
        values[name] = ([rows, columns], [x for row in matrix for x in row])

    f32("token_embd.weight", "model.embed_tokens.weight", [vocabulary, hidden])
    for i in range(layers):
        old, new = f"blk.{i}", f"model.layers.{i}"
        f32(f"{old}.attn_norm.weight", f"{new}.input_layernorm.weight", [hidden])
        q8_0(f"{old}.attn_q.weight", f"{new}.self_attn.q_proj.weight", hidden, hidden, heads)
        q8_0(f"{old}.attn_k.weight", f"{new}.self_attn.k_proj.weight", kv_heads * head, hidden, kv_heads)
        q8_0(f"{old}.attn_v.weight", f"{new}.self_attn.v_proj.weight", kv_heads * head, hidden)
        q8_0(f"{old}.attn_output.weight", f"{new}.self_attn.o_proj.weight", hidden, hidden)
        f32(f"{old}.ffn_norm.weight", f"{new}.post_attention_layernorm.weight", [hidden])
        q8_0(f"{old}.ffn_gate.weight", f"{new}.mlp.gate_proj.weight", intermediate, hidden)
        q8_0(f"{old}.ffn_up.weight", f"{new}.mlp.up_proj.weight", intermediate, hidden)
        q8_0(f"{old}.ffn_down.weight", f"{new}.mlp.down_proj.weight", hidden, intermediate)
    f32("output_norm.weight", "model.norm.weight", [hidden])
    if not tied:
        f32("output.weight", "lm_head.weight", [vocabulary, hidden])
    return metadata, tensors, values
