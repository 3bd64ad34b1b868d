"""Logits of tiny random models of every family beside transformers' in f32.

    python tests/interop/network_logits.py BUILD_FOLDER

Needs torch and transformers. Every model is saved to a temporary folder, run by tests/model/network_logits and by
transformers with eager attention; the largest difference must stay below 2e-4 of the largest logit.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as t

TOLERANCE = 2e-4
SIZES = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, vocab_size=199, max_position_embeddings=256)
LLAMA = dict(SIZES, intermediate_size=112, num_key_value_heads=2)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48)


def rope(config, scaling):
    """Sets the scaling of the rotary embedding under whatever name this version of transformers has for it."""
    if hasattr(config, "rope_parameters"):
        config.rope_parameters = dict(config.rope_parameters or {}, **scaling)
    else:
        config.rope_scaling = scaling
    return config


MODELS = {
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**LLAMA)),
    "llama-tied-bias": lambda: t.LlamaForCausalLM(
        t.LlamaConfig(**LLAMA, tie_word_embeddings=True, attention_bias=True, head_dim=24)),
    "llama3-rope": lambda: t.LlamaForCausalLM(rope(t.LlamaConfig(**LLAMA), LLAMA3)),
    "yarn": lambda: t.LlamaForCausalLM(rope(t.LlamaConfig(**LLAMA), YARN)),
    "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**LLAMA, sliding_window=11)),
    "mixtral": lambda: t.MixtralForCausalLM(
        t.MixtralConfig(**LLAMA, num_local_experts=5, num_experts_per_tok=2, sliding_window=None)),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**LLAMA)),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**LLAMA, head_dim=16)),
    "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(
        t.Qwen3MoeConfig(**LLAMA, **EXPERTS, head_dim=16, norm_topk_prob=True, mlp_only_layers=[1])),
    "opt": lambda: t.OPTForCausalLM(t.OPTConfig(**SIZES, ffn_dim=96, word_embed_proj_dim=64)),
    "opt-post-norm": lambda: t.OPTForCausalLM(
        t.OPTConfig(**SIZES, ffn_dim=96, word_embed_proj_dim=64, do_layer_norm_before=False)),
    "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=199, n_positions=256)),
    "bert": lambda: t.BertModel(t.BertConfig(**SIZES, intermediate_size=112)),
}


def scramble(model):
    """Norms and biases are ones and zeros in a new model; nothing would be seen of them."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.data += 0.1 * noise
        else:
            parameter.data = noise * parameter.shape[-1] ** -0.5
    return model


def main():
    driver = Path(sys.argv[1]) / "tests/model/network_logits"
    ids = torch.randint(0, 199, (5, 40), generator=torch.Generator().manual_seed(3))
    failed = 0
    for name, make in MODELS.items():
        torch.manual_seed(1)
        model = scramble(make()).eval().float()
        model.config._attn_implementation = "eager"
        with torch.no_grad():
            output = model(ids)
        expected = (output.logits if hasattr(output, "logits") else output.last_hidden_state).numpy()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            run = subprocess.run([driver, folder, str(ids.shape[1])],
                                 input=" ".join(map(str, ids.flatten().tolist())).encode(), capture_output=True)
        if run.returncode:
            print(f"{name:18} {run.stderr.decode().strip()}")
            failed += 1
            continue
        got = np.frombuffer(run.stdout, np.float32).reshape(expected.shape)
        difference = np.abs(got - expected).max() / np.abs(expected).max()
        good = difference <= TOLERANCE
        failed += not good
        print(f"{name:18} largest difference {difference:.2e} of the largest value{'' if good else '  TOO LARGE'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
