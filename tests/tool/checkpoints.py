"""safetensors files and small checkpoints of the families that kvant knows, with the standard library only.

The reader is as strict as the format: what kvant writes goes through it.
"""

import array
import ctypes
import json
import math
import os
import random
import struct
import sys
from dataclasses import dataclass, field

assert sys.byteorder == "little"

WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4,
          "I64": 8, "U64": 8, "F64": 8}
INTEGERS = {"U8": "B", "I8": "b", "I16": "h", "U16": "H", "I32": "i", "U32": "I", "I64": "q", "U64": "Q"}
INDEX_NAME = "model.safetensors.index.json"


# ---- Numbers: a value of a type is the Python float that equals it -------------------------------------------------

def round_f32(x):
    return ctypes.c_float(x).value


def f32_bits(x):
    return struct.unpack("<I", bytes(ctypes.c_float(x)))[0]


def f16_bits(x):
    """Nearest, ties to even; what is too large becomes infinite."""
    try:
        return struct.unpack("<H", struct.pack("<e", float(x)))[0]
    except OverflowError:
        return 0xFC00 if x < 0 else 0x7C00


def f16_value(bits):
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def bf16_bits(x):
    """Of x rounded to f32 first, as whoever computes in f32 stores it."""
    if math.isnan(x):
        return 0x7FC0
    bits = f32_bits(x)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def bf16_value(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def round_to(x, dtype):
    """x, which an f32 computation made (f64: an f64 one), in its stored form."""
    if dtype == "F64":
        return x
    if dtype == "F32":
        return round_f32(x)
    if dtype == "F16":
        return f16_value(f16_bits(round_f32(x)))
    if dtype == "BF16":
        return bf16_value(bf16_bits(x))
    raise ValueError(dtype)


def encode(values, dtype):
    if dtype == "F64":
        return array.array("d", values).tobytes()
    if dtype == "F32":
        return array.array("f", values).tobytes()
    if dtype == "F16":
        return array.array("H", [f16_bits(v) for v in values]).tobytes()
    if dtype == "BF16":
        return array.array("H", [bf16_bits(v) for v in values]).tobytes()
    return array.array(INTEGERS[dtype], values).tobytes()


_HALVES = []


def decode(data, dtype):
    if dtype == "F64":
        return array.array("d", data).tolist()
    if dtype == "F32":
        return array.array("f", data).tolist()
    if dtype == "F16":
        if not _HALVES:
            _HALVES.extend(struct.unpack("<65536e", array.array("H", range(65536)).tobytes()))
        return [_HALVES[bits] for bits in array.array("H", data)]
    if dtype == "BF16":
        return array.array("f", array.array("I", [bits << 16 for bits in array.array("H", data)]).tobytes()).tolist()
    return array.array(INTEGERS[dtype], data).tolist()


# ---- safetensors ---------------------------------------------------------------------------------------------------

@dataclass
class Tensor:
    dtype: str
    shape: list
    data: bytes

    @classmethod
    def of(cls, values, dtype, shape=None):
        return cls(dtype, [len(values)] if shape is None else list(shape), encode(values, dtype))

    def values(self):
        return decode(self.data, self.dtype)

    def rows(self):
        values, width = self.values(), self.shape[1]
        return [values[i * width:(i + 1) * width] for i in range(self.shape[0])]


def header_bytes(text):
    if isinstance(text, str):
        text = text.encode()
    return struct.pack("<Q", len(text)) + text


def layout(tensors):
    """The entries of a header: {name: (dtype, shape)} without data in between."""
    entries, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * WIDTHS[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return entries, at


def write_safetensors(path, tensors, metadata=None):
    entries, _ = layout({name: (t.dtype, t.shape) for name, t in tensors.items()})
    header = {"__metadata__": {"format": "pt"} if metadata is None else metadata, **entries}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(header_bytes(text))
        for tensor in tensors.values():
            file.write(tensor.data)


def write_sparse_safetensors(path, tensors):
    """{name: (dtype, shape)} of zeros that take no room on the disk. Returns the offset of the data in the file."""
    entries, size = layout(tensors)
    text = header_bytes(json.dumps({"__metadata__": {"format": "pt"}, **entries}))
    with open(path, "wb") as file:
        file.write(text)
        file.truncate(len(text) + size)
    return len(text)


def _unique(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"a key is twice in {keys}")
    return dict(pairs)


def read_header(path):
    """({name: {dtype, shape, data_offsets}}, metadata, offset of the data), with every rule of the format checked."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > size - 8 or length > 100_000_000:
            raise ValueError(f"{path}: a header of {length} bytes in a file of {size}")
        text = file.read(length)
    if not text.startswith(b"{"):
        raise ValueError(f"{path}: the header begins with {text[:1]!r}")
    header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    metadata = header.pop("__metadata__", {})
    if not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"{path}: metadata {metadata}")
    at = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{path}: {name} has fields {list(entry)}")
        begin, end = entry["data_offsets"]
        if begin != at or end - begin != math.prod(entry["shape"]) * WIDTHS[entry["dtype"]]:
            raise ValueError(f"{path}: {name} is at {begin} to {end}, expected {at}; shape {entry['shape']}")
        at = end
    if 8 + length + at != size:
        raise ValueError(f"{path}: has {size} bytes, its header says {8 + length + at}")
    return header, metadata, 8 + length


def read_safetensors(path):
    header, metadata, start = read_header(path)
    tensors = {}
    with open(path, "rb") as file:
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            file.seek(start + begin)
            tensors[name] = Tensor(entry["dtype"], entry["shape"], file.read(end - begin))
    return tensors, metadata


# ---- Checkpoints ---------------------------------------------------------------------------------------------------

@dataclass
class Group:
    """A norm and all that reads its output."""
    norm: str
    readers: list


@dataclass
class Model:
    tensors: dict
    config: dict
    linears: list                                # modules that are quantized by default
    unquantized: list = field(default_factory=list)  # Linears that are not: heads and routers
    groups: list = field(default_factory=list)
    alpha: float = 0.5

    def shape(self, module):
        return self.tensors[module + ".weight"].shape


class Maker:
    """Random weights: most of them small, some channels far larger, as in trained models."""

    def __init__(self, dtype, seed):
        self.dtype = dtype
        self.random = random.Random(seed)
        self.tensors = {}
        self.linears = []

    def values(self, count, deviation=0.05):
        return [self.random.gauss(0, deviation) for _ in range(count)]

    def table(self, module, rows, columns):
        self.tensors[module + ".weight"] = Tensor.of(self.values(rows * columns), self.dtype, [rows, columns])

    def linear(self, module, rows, columns, bias=False):
        self.table(module, rows, columns)
        self.linears.append(module)
        if bias:
            self.tensors[module + ".bias"] = Tensor.of(self.values(rows), self.dtype)

    def norm(self, module, size, bias=False):
        weights = [1 + self.random.gauss(0, 0.2) for _ in range(size)]
        self.tensors[module + ".weight"] = Tensor.of(weights, self.dtype)
        if bias:
            self.tensors[module + ".bias"] = Tensor.of(self.values(size, 0.3), self.dtype)


TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def config_of(model_type, architecture, dtype, **more):
    # Keys that are not sorted, values of every kind: all of it must come through.
    return {"architectures": [architecture], "model_type": model_type, "torch_dtype": TORCH_NAMES[dtype],
            "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "eos_token_id": [2, 32000], "bos_token_id": 1,
            "rope_scaling": None, "tie_word_embeddings": False, "name": "caf\u00e9 \u2603 \"quoted\"", "big": 2 ** 53 + 1,
            "negative": -7, "nested": {"z": 1, "a": [{"y": [], "b": {}}]}, **more, "a_last_key": 0.1}


def llama(dtype="BF16", hidden=32, intermediate=48, layers=2, vocabulary=40, model_type="llama", seed=1, bias=False,
          head=True, head_norms=False):
    """Llama, Mistral, Qwen2 (with `bias`) and Qwen3 (with `head_norms`) have these names."""
    make = Maker(dtype, seed)
    groups = []
    make.table("model.embed_tokens", vocabulary, hidden)
    kv = max(8, hidden // 2)
    for i in range(layers):
        block = f"model.layers.{i}"
        make.norm(f"{block}.input_layernorm", hidden)
        make.linear(f"{block}.self_attn.q_proj", hidden, hidden, bias)
        make.linear(f"{block}.self_attn.k_proj", kv, hidden, bias)
        make.linear(f"{block}.self_attn.v_proj", kv, hidden, bias)
        make.linear(f"{block}.self_attn.o_proj", hidden, hidden)
        if head_norms:
            make.norm(f"{block}.self_attn.q_norm", 8)
            make.norm(f"{block}.self_attn.k_norm", 8)
        make.norm(f"{block}.post_attention_layernorm", hidden)
        make.linear(f"{block}.mlp.gate_proj", intermediate, hidden)
        make.linear(f"{block}.mlp.up_proj", intermediate, hidden)
        make.linear(f"{block}.mlp.down_proj", hidden, intermediate)
        groups.append(Group(f"{block}.input_layernorm", [f"{block}.self_attn.{p}_proj" for p in "qkv"]))
        groups.append(Group(f"{block}.post_attention_layernorm",
                            [f"{block}.mlp.gate_proj", f"{block}.mlp.up_proj"]))
    make.norm("model.norm", hidden)
    unquantized = []
    if head:
        make.table("lm_head", vocabulary, hidden)
        unquantized.append("lm_head")
    config = config_of(model_type, "LlamaForCausalLM", dtype, hidden_size=hidden, num_hidden_layers=layers)
    return Model(make.tensors, config, make.linears, unquantized, groups, 0.8)


def opt(dtype="F16", hidden=32, inner=64, layers=2, seed=2, **facts):
    make = Maker(dtype, seed)
    groups = []
    make.table("model.decoder.embed_tokens", 40, hidden)
    make.table("model.decoder.embed_positions", 20, hidden)
    for i in range(layers):
        block = f"model.decoder.layers.{i}"
        for p in "kvq":
            make.linear(f"{block}.self_attn.{p}_proj", hidden, hidden, True)
        make.linear(f"{block}.self_attn.out_proj", hidden, hidden, True)
        make.norm(f"{block}.self_attn_layer_norm", hidden, True)
        make.linear(f"{block}.fc1", inner, hidden, True)
        make.linear(f"{block}.fc2", hidden, inner, True)
        make.norm(f"{block}.final_layer_norm", hidden, True)
        groups.append(Group(f"{block}.self_attn_layer_norm", [f"{block}.self_attn.{p}_proj" for p in "kqv"]))
        groups.append(Group(f"{block}.final_layer_norm", [f"{block}.fc1"]))
    make.norm("model.decoder.final_layer_norm", hidden, True)
    return Model(make.tensors, config_of("opt", "OPTForCausalLM", dtype, **{"do_layer_norm_before": True, **facts}),
                 make.linears, [], groups, 0.5)


def bloom(dtype="BF16", hidden=32, layers=2, seed=3, **facts):
    make = Maker(dtype, seed)
    groups = []
    make.table("word_embeddings", 40, hidden)
    make.norm("word_embeddings_layernorm", hidden, True)
    for i in range(layers):
        block = f"h.{i}"
        make.norm(f"{block}.input_layernorm", hidden, True)
        make.linear(f"{block}.self_attention.query_key_value", 3 * hidden, hidden, True)
        make.linear(f"{block}.self_attention.dense", hidden, hidden, True)
        make.norm(f"{block}.post_attention_layernorm", hidden, True)
        make.linear(f"{block}.mlp.dense_h_to_4h", 4 * hidden, hidden, True)
        make.linear(f"{block}.mlp.dense_4h_to_h", hidden, 4 * hidden, True)
        groups.append(Group(f"{block}.input_layernorm", [f"{block}.self_attention.query_key_value"]))
        groups.append(Group(f"{block}.post_attention_layernorm", [f"{block}.mlp.dense_h_to_4h"]))
    make.norm("ln_f", hidden, True)
    return Model(make.tensors, config_of("bloom", "BloomForCausalLM", dtype, **facts), make.linears, [], groups, 0.5)


def mixtral(dtype="BF16", hidden=32, intermediate=40, experts=3, layers=1, seed=4):
    make = Maker(dtype, seed)
    groups, routers = [], []
    make.table("model.embed_tokens", 40, hidden)
    for i in range(layers):
        block = f"model.layers.{i}"
        make.norm(f"{block}.input_layernorm", hidden)
        for p in "qkvo":
            make.linear(f"{block}.self_attn.{p}_proj", hidden, hidden)
        make.norm(f"{block}.post_attention_layernorm", hidden)
        moe = f"{block}.block_sparse_moe"
        make.table(f"{moe}.gate", experts, hidden)
        routers.append(f"{moe}.gate")
        for e in range(experts):
            make.linear(f"{moe}.experts.{e}.w1", intermediate, hidden)
            make.linear(f"{moe}.experts.{e}.w2", hidden, intermediate)
            make.linear(f"{moe}.experts.{e}.w3", intermediate, hidden)
        groups.append(Group(f"{block}.input_layernorm", [f"{block}.self_attn.{p}_proj" for p in "qkv"]))
        groups.append(Group(f"{block}.post_attention_layernorm",
                            [f"{moe}.gate"] + [f"{moe}.experts.{e}.{w}" for e in range(experts) for w in ("w1", "w3")]))
    make.norm("model.norm", hidden)
    make.table("lm_head", 40, hidden)
    config = config_of("mixtral", "MixtralForCausalLM", dtype, num_local_experts=experts)
    return Model(make.tensors, config, make.linears, ["lm_head"] + routers, groups, 0.8)


def qwen2_moe(dtype="BF16", hidden=32, intermediate=24, experts=2, seed=5):
    make = Maker(dtype, seed)
    make.table("model.embed_tokens", 40, hidden)
    block = "model.layers.0"
    make.norm(f"{block}.input_layernorm", hidden)
    for p in "qkv":
        make.linear(f"{block}.self_attn.{p}_proj", hidden, hidden, True)
    make.linear(f"{block}.self_attn.o_proj", hidden, hidden)
    make.norm(f"{block}.post_attention_layernorm", hidden)
    make.table(f"{block}.mlp.gate", experts, hidden)
    make.table(f"{block}.mlp.shared_expert_gate", 1, hidden)
    blocks = [f"{block}.mlp.experts.{e}" for e in range(experts)] + [f"{block}.mlp.shared_expert"]
    for expert in blocks:
        make.linear(f"{expert}.gate_proj", intermediate, hidden)
        make.linear(f"{expert}.up_proj", intermediate, hidden)
        make.linear(f"{expert}.down_proj", hidden, intermediate)
    make.norm("model.norm", hidden)
    make.table("lm_head", 40, hidden)
    routers = [f"{block}.mlp.gate", f"{block}.mlp.shared_expert_gate"]
    groups = [Group(f"{block}.input_layernorm", [f"{block}.self_attn.{p}_proj" for p in "qkv"]),
              Group(f"{block}.post_attention_layernorm",
                    routers + [f"{e}.{p}_proj" for e in blocks for p in ("gate", "up")])]
    return Model(make.tensors, config_of("qwen2_moe", "Qwen2MoeForCausalLM", dtype), make.linears,
                 ["lm_head"] + routers, groups, 0.8)


def gpt2(dtype="F32", hidden=16, seed=6):
    make = Maker(dtype, seed)
    make.table("wte", 40, hidden)
    make.table("wpe", 20, hidden)
    make.norm("h.0.ln_1", hidden, True)
    make.linear("h.0.attn.c_attn", hidden, 3 * hidden, True)
    make.linear("h.0.attn.c_proj", hidden, hidden, True)
    make.norm("h.0.ln_2", hidden, True)
    make.linear("h.0.mlp.c_fc", hidden, 4 * hidden, True)
    make.linear("h.0.mlp.c_proj", 4 * hidden, hidden, True)
    make.norm("ln_f", hidden, True)
    return Model(make.tensors, config_of("gpt2", "GPT2LMHeadModel", dtype), make.linears)


def gemma(dtype="BF16", seed=7):
    model = llama(dtype, model_type="gemma2", seed=seed, layers=1, head=False)
    return Model(model.tensors, model.config, model.linears)


def bert(dtype="F32", hidden=16, seed=8):
    make = Maker(dtype, seed)
    make.table("bert.embeddings.word_embeddings", 40, hidden)
    make.norm("bert.embeddings.LayerNorm", hidden, True)
    block = "bert.encoder.layer.0"
    for p in ("query", "key", "value"):
        make.linear(f"{block}.attention.self.{p}", hidden, hidden, True)
    make.linear(f"{block}.attention.output.dense", hidden, hidden, True)
    make.norm(f"{block}.attention.output.LayerNorm", hidden, True)
    return Model(make.tensors, config_of("bert", "BertModel", dtype), make.linears)


OTHER_FILES = {"tokenizer.json": b'{"version": "1.0", "odd": "\xe2\x98\x83"}\n\n', "tokenizer_config.json": b"{}",
               "generation_config.json": b'{"b":1,"a":2}', "tokenizer.model": bytes(range(256)) * 5, "README.md": b"# hi\r\n"}


def write_folder(path, model, shards=1, other_files=True, index=None):
    """A folder as Hugging Face writes it. Returns its path. `index`: also for one shard."""
    os.makedirs(path)
    names = list(model.tensors)
    if shards == 1 and not index:
        write_safetensors(os.path.join(path, "model.safetensors"), model.tensors)
    else:
        shards = min(shards, len(names))
        weight_map = {}
        for s in range(shards):
            shard = f"model-{s + 1:05}-of-{shards:05}.safetensors"
            part = names[s * len(names) // shards:(s + 1) * len(names) // shards]
            write_safetensors(os.path.join(path, shard), {name: model.tensors[name] for name in part})
            weight_map.update({name: shard for name in part})
        write_index(path, weight_map, sum(len(t.data) for t in model.tensors.values()))
    if model.config is not None:
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump(model.config, file, indent=2, ensure_ascii=False)
    if other_files:
        for name, data in OTHER_FILES.items():
            with open(os.path.join(path, name), "wb") as file:
                file.write(data)
    return path


def write_index(path, weight_map, total_size):
    with open(os.path.join(path, INDEX_NAME), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total_size}, "weight_map": weight_map}, file, indent=2)


def read_folder(path):
    """Every tensor of a folder or a file, by name."""
    if os.path.isfile(path):
        return read_safetensors(path)[0]
    tensors = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            more, _ = read_safetensors(os.path.join(path, name))
            if set(more) & set(tensors):
                raise ValueError(f"{name}: has tensors of another shard: {set(more) & set(tensors)}")
            tensors.update(more)
    return tensors


def make_stats(model, seed=99, min_max=True, mean_square=False):
    """Statistics of the input of every linear: what one norm feeds has the same."""
    rng = random.Random(seed)
    stats = {}

    def ranges(size):
        low, high = [], []
        for _ in range(size):
            large = rng.uniform(0.5, 3) * (30 if rng.random() < 0.1 else 1)
            low.append(round_f32(-large * rng.uniform(0.1, 1)))
            high.append(round_f32(large * rng.uniform(0.3, 1)))
        return low, high

    def put(module, low, high):
        stats[module + ".absmax"] = Tensor.of([max(abs(a), abs(b)) for a, b in zip(low, high)], "F32")
        if min_max:
            stats[module + ".min"] = Tensor.of(low, "F32")
            stats[module + ".max"] = Tensor.of(high, "F32")
        if mean_square:
            stats[module + ".mean_square"] = Tensor.of([high[i] * low[i] / -9 for i in range(len(low))], "F32")

    for group in model.groups:
        low, high = ranges(model.shape(group.readers[0])[1])
        for reader in group.readers:
            if reader in model.linears:
                put(reader, low, high)
    for module in model.linears:
        if module + ".absmax" not in stats:
            put(module, *ranges(model.shape(module)[1]))
    return stats
