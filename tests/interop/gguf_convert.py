#!/usr/bin/env python3
"""A real GGUF, converted and loaded by transformers.

    python3 tests/interop/gguf_convert.py model.gguf FOLDER    # FOLDER is what 'kvant convert model.gguf -o FOLDER' wrote

Needs gguf, numpy, torch and transformers. Every tensor of the folder must equal gguf's dequantize (the rows of q and k in
Hugging Face's order), the tokenizer must give back what it was given, and the model must continue a sentence sensibly:
the capital of France among the likeliest words, and a low perplexity on plain English.
"""

import math
import sys

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
TEXT = ("The sun rises in the east and sets in the west. Water boils when it is heated to one hundred degrees, and it freezes when "
        "it becomes very cold. In the morning people drink coffee, read the newspaper and go to work.")


def hf_name(name):
    if name in TOP:
        return TOP[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{kind}"


def check_tensors(reader, state, config):
    compared = 0
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(tensor.name.split(".")[-2])
        if heads and config.model_type in ("llama", "mixtral"):
            values = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        got = state.pop(hf_name(tensor.name)).numpy()
        assert got.dtype == np.float32 and got.shape == values.shape, (tensor.name, got.dtype, got.shape, values.shape)
        assert (got.view(np.uint32) == np.ascontiguousarray(values).view(np.uint32)).all(), tensor.name
        compared += got.size
    assert not state or list(state) == ["lm_head.weight"] and config.tie_word_embeddings, list(state)
    print(f"{len(reader.tensors)} tensors, {compared} values equal to the bit")


def check_tokenizer(tokenizer, reader):
    tokens = reader.fields["tokenizer.ggml.tokens"]
    texts = [bytes(tokens.parts[at]).decode() for at in tokens.data]
    assert tokenizer.convert_ids_to_tokens(list(range(len(texts)))) == texts
    for text in (TEXT, "In 2024 there were 1,234.5 of them \u2014 caf\u00e9, na\u00efve, \u65e5\u672c\u8a9e, \U0001f600!\n\n  def f(x):\n\treturn x + 1\n"):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids) == text, (text, tokenizer.decode(ids))
        assert len(ids) < len(text)
    print(f"{len(texts)} tokens; texts come back as they were")


@torch.no_grad()
def check_model(model, tokenizer):
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    perplexity = math.exp(model(ids, labels=ids).loss)
    prompt = tokenizer("The capital of France is", return_tensors="pt").input_ids
    likely = [tokenizer.decode(i).strip() for i in model(prompt).logits[0, -1].topk(5).indices]
    continued = tokenizer.decode(model.generate(prompt, max_new_tokens=24, do_sample=False)[0])
    print(f"perplexity {perplexity:.2f}; {continued!r}; likeliest: {likely}")
    assert perplexity < 25, perplexity
    assert "Paris" in likely, likely


def main(path, folder):
    reader = gguf.GGUFReader(path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check_tensors(reader, dict(model.state_dict()), model.config)
    check_tokenizer(tokenizer, reader)
    check_model(model, tokenizer)


if __name__ == "__main__":
    main(*sys.argv[1:])
