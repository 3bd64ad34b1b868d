#!/usr/bin/env python3
"""Every architecture that kvant converts, through transformers.

    python3 tests/interop/gguf_architectures.py build/release/kvant

Needs gguf, numpy, torch, safetensors and transformers. A small random model of each is saved by transformers, written as a
GGUF with the names and the order of rows of llama.cpp, converted, and loaded again: the logits must be those of the model
that was saved, bit for bit.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEADS, KV_HEADS, HEAD, LAYERS, VOCABULARY = 4, 2, 32, 2, 96
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD,
             vocab_size=VOCABULARY, max_position_embeddings=512, rms_norm_eps=3e-6, rope_theta=50000.0)
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
          "rope_theta": 500000.0}
MODELS = {
    "llama": ("llama", transformers.LlamaConfig(**SIZES)),
    "llama, tied, with biases": ("llama", transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)),
    "llama 3": ("llama", transformers.LlamaConfig(**{**SIZES, "rope_theta": 500000.0, "max_position_embeddings": 131072}, rope_scaling=LLAMA3)),
    "mixtral": ("llama", transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": ("qwen2", transformers.Qwen2Config(**SIZES)),
    "qwen3": ("qwen3", transformers.Qwen3Config(**SIZES)),
    "qwen3moe": ("qwen3moe", transformers.Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True)),
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp",
         "w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps", "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def gguf_tensors(saved, architecture):
    """{name: values} as llama.cpp has them; experts of one kind are one tensor."""
    tensors, experts = {}, {}
    for name, values in saved.items():
        module, kind = name.rsplit(".", 1)
        if module in TOP:
            tensors[f"{TOP[module]}.{kind}"] = values
            continue
        _, _, layer, part = module.split(".", 3)
        if found := re.fullmatch(r".*experts\.(\d+)\.(\w+)", part):
            experts.setdefault(f"blk.{layer}.{PARTS[found[2]]}.{kind}", {})[int(found[1])] = values
            continue
        if architecture == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = HEADS if part.endswith("q_proj") else KV_HEADS
            values = values.reshape(heads, 2, HEAD // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        tensors[f"blk.{layer}.{PARTS[part]}.{kind}"] = values
    for name, by_number in experts.items():
        tensors[name] = np.stack([by_number[i] for i in range(len(by_number))])
    return tensors


def rope_factors():
    """As llama.cpp's converter makes them for Llama 3."""
    frequencies = 1.0 / (LLAMA3["rope_theta"] ** (torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD))
    factors = []
    for wavelength in (2 * np.pi / frequencies).tolist():
        smooth = (8192 / wavelength - 1) / (4 - 1)
        factors.append(1.0 if wavelength < 8192 / 4 else 32.0 if wavelength > 8192 else 1 / ((1 - smooth) / 32 + smooth))
    return np.array(factors, np.float32)


def write_gguf(path, architecture, config, tensors, theta):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(theta)
    if "moe" in config.model_type or config.model_type == "mixtral":
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(32)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def check(tool, title, architecture, config, folder):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():  # also the biases and norms, which begin as 0 and 1
        parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder / "saved")
    saved = load_file(folder / "saved" / "model.safetensors")
    tensors = gguf_tensors(saved, architecture)
    if title == "llama 3":
        tensors["rope_freqs.weight"] = rope_factors()
    write_gguf(folder / "m.gguf", architecture, config, tensors, LLAMA3["rope_theta"] if title == "llama 3" else SIZES["rope_theta"])
    subprocess.run([tool, "convert", folder / "m.gguf", "-o", folder / "out"], check=True, capture_output=True)
    got = load_file(folder / "out" / "model.safetensors")
    assert sorted(got) == sorted(saved), set(got) ^ set(saved)
    for name in saved:
        assert np.array_equal(got[name], saved[name]), name
    again = transformers.AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32).eval()
    assert type(again) is type(model), type(again)
    ids = torch.randint(0, VOCABULARY, (2, 300), generator=torch.Generator().manual_seed(2))
    want, logits = model(ids).logits, again(ids).logits
    assert torch.equal(want, logits), f"{title}: logits differ by {(want - logits).abs().max()}"
    print(f"{title}: {len(saved)} tensors and {logits.numel()} logits equal to the bit")


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    binary = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/kvant").resolve()
    for each, (name, settings) in MODELS.items():
        with tempfile.TemporaryDirectory() as temporary:
            check(binary, each, name, settings, pathlib.Path(temporary))
