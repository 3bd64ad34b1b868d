#!/usr/bin/env python3
"""Writes corpus/config and corpus/index: small files to begin fuzzing with, legal ones and ones that break a rule each.

A file of the index is model.safetensors.index.json, a zero byte, config.json (see index_fuzz.cc). Run without arguments from any
folder; the output is checked in.
"""
import copy
import json
import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus"


def write(folder, name, document):
    (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"))
    (FOLDER / folder / name).write_text(text)


# ---- config.json

def quantized(weights, activations=None, layout="int-quantized", **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {"quantization_config": {"quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed",
                                    "ignore": ["lm_head"], "config_groups": {"group_0": group}, **more}}


def args(bits, strategy, symmetric=True, dynamic=False, **more):
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "dynamic": dynamic, "group_size": None,
            "block_structure": None, "actorder": None, "observer": "minmax", "observer_kwargs": {}, **more}


w8a8 = quantized(args(8, "channel"), args(8, "token", dynamic=True, observer=None))
w8a8_static = quantized(args(8, "channel"), args(8, "tensor"))
w4a16 = quantized(args(4, "group", group_size=128), layout="pack-quantized")
write("config", "legal_w8a8", w8a8)
write("config", "legal_w8a8_static", w8a8_static)
write("config", "legal_w4a16", w4a16)
llama = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 40, "hidden_act": "silu",
         "max_position_embeddings": 64, "tie_word_embeddings": False}
write("config", "legal_llama", llama)
write("config", "legal_qwen3", {**llama, "model_type": "qwen3", "head_dim": 8})
write("config", "legal_mixtral", {**llama, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1})
write("config", "legal_rope", {**llama, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                         "high_freq_factor": 4.0, "original_max_position_embeddings": 32}})
write("config", "legal_pictures", {"model_type": "llava", "text_config": llama})
write("config", "patterns", quantized(args(8, "channel"), args(8, "token", dynamic=True), ignore=["re:.*(a|b)+$", "re:^x{2,9}"]))
for name, path, value in (("refused_method", ["quant_method"], "awq"), ("refused_bits", ["config_groups", "group_0", "weights", "num_bits"], 3),
                          ("refused_group_size", ["config_groups", "group_0", "weights", "group_size"], -1),
                          ("refused_list", ["ignore"], [1]), ("refused_groups", ["config_groups"], {}),
                          ("refused_depth", ["config_groups", "group_0"], [[[[]]]])):
    changed = copy.deepcopy(w4a16)
    at = changed["quantization_config"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    write("config", name, changed)
write("config", "refused_heads", {**llama, "num_key_value_heads": 3})
write("config", "refused_layers", {**llama, "num_hidden_layers": 2**62})
write("config", "refused_twice", '{"model_type":"llama","model_type":"opt"}')
write("config", "refused_number", {**llama, "hidden_size": 1e300})
write("config", "refused_utf8", '{"model_type":"\\ud800"}')

# ---- The index of a folder with one.safetensors (a, b) and two.safetensors (c)

shards = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}


def index(weight_map, total=12, **more):
    return {"metadata": {"total_size": total}, "weight_map": weight_map, **more}


write("index", "legal", index(shards))
write("index", "legal_one_shard", index({"a": "one.safetensors", "b": "one.safetensors"}, 8))
write("index", "legal_config", json.dumps(index(shards)) + "\0" + json.dumps(llama))
write("index", "refused_config", json.dumps(index(shards)) + "\0" + "[1]")
write("index", "refused_no_map", {"metadata": {}})
write("index", "refused_map", index([1]))
write("index", "refused_more", index({**shards, "d": "two.safetensors"}))
write("index", "refused_fewer", index({"a": "one.safetensors", "c": "two.safetensors"}))
write("index", "refused_other_shard", index({**shards, "b": "two.safetensors"}))
write("index", "refused_shard", index({**shards, "b": 3}))
write("index", "refused_missing", index({**shards, "b": "three.safetensors"}))
for name, path in (("parent", "../one.safetensors"), ("absolute", "/etc/passwd"), ("here", "./one.safetensors"), ("dots", ".."),
                   ("zero", "one.safetensors\0x"), ("itself", "model.safetensors.index.json")):
    write("index", "refused_path_" + name, index({**shards, "b": path}))
