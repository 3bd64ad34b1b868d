"""What vLLM makes of the checkpoints in the folders of FOLDER, each named after its scheme: Llama-like models that
tests/interop/checkpoint_matrix.py has quantized.

    build/vllm/bin/python tests/interop/vllm_schemes.py FOLDER

Prints a JSON document: versions, and for each checkpoint the class that vLLM picks for its linears and experts, `device`,
for which it has a kernel, and `failure`, if not all of this is so:

- vLLM's parser accepts quantization_config, and lm_head is not quantized.
- vLLM's own fused layers (q, k and v; gate and up) and its other linears, of the first block, have a parameter for every tensor of the
  checkpoint and no other, their loaders take the tensors, and what they hold then are the bytes of the checkpoint.
- There is a class for the experts, if there are any.
- vLLM accepts kv_cache_scheme, if there is one, and finds the scales of keys and values by their names.

No kernel runs and no GPU is needed: vLLM is told that there is one.
"""

import importlib.metadata
import json
import os
import pkgutil
import sys
import types
from pathlib import Path

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
import vllm._custom_ops as compiled

# What vLLM asks its compiled part, which needs a GPU. Before others import these by name.
for name, least in (("fp8", 89), ("block_fp8", 90), ("fp4", 100)):
    setattr(compiled, f"cutlass_scaled_mm_supports_{name}", lambda capability, least=least: capability >= least)

import vllm.distributed.parallel_state as parallel
import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe as experts
from safetensors.torch import load_file
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig, CompressedTensorsKVCacheMethod)
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability, PlatformEnum

CAPABILITY = (9, 0)  # Hopper
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


class Differs(Exception):
    """What a checkpoint of ours must not make vLLM do."""


def pretend(device):
    platform = type(current_platform)
    platform._enum = device
    capability = DeviceCapability(*CAPABILITY) if device == PlatformEnum.CUDA else None
    platform.get_device_capability = classmethod(lambda cls, device_id=0: capability)


def layers(text, config):
    """Of the first block: each layer, and its parts as (name in the checkpoint, what the loader calls it)."""
    block = "model.layers.0"
    size, heads = text["hidden_size"], text["num_attention_heads"]
    width = text.get("head_dim") or size // heads
    options = dict(bias=False, params_dtype=getattr(torch, text.get("dtype") or "float32"), quant_config=config, disable_tp=True)

    def one(kind, name, parts, *sizes):
        parent = f"{block}.{name}".rpartition(".")[0]
        return kind(*sizes, prefix=f"{block}.{name}", **options), [(f"{parent}.{part}", label) for part, label in parts]

    yield one(QKVParallelLinear, "self_attn.qkv_proj", zip(FUSED["qkv_proj"], "qkv"), size, width, heads, text["num_key_value_heads"])
    yield one(RowParallelLinear, "self_attn.o_proj", [("o_proj", None)], heads * width, size)
    if not text.get("num_local_experts"):
        inner = text["intermediate_size"]
        yield one(MergedColumnParallelLinear, "mlp.gate_up_proj", zip(FUSED["gate_up_proj"], (0, 1)), size, [inner, inner])
        yield one(RowParallelLinear, "mlp.down_proj", [("down_proj", None)], inner, size)


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8)


def check_loading(layer, parts, tensors):
    parameters, given = dict(layer.named_parameters()), {}
    for module, label in parts:
        for name, value in tensors.items():
            if name.rpartition(".")[0] != module:
                continue
            part = name.rpartition(".")[2]
            if part not in parameters:
                raise Differs(f"{name}: {type(layer).__name__} has no place for it")
            parameters[part].weight_loader(parameters[part], value, *([] if label is None else [label]))
            given.setdefault(part, []).append(value)
    lacking = parameters.keys() - given.keys()
    if lacking:
        raise Differs(f"{parts[0][0]}: vLLM wants {', '.join(sorted(lacking))}")
    for part, values in given.items():
        held, expected = parameters[part].data, torch.cat([value.reshape(-1, *value.shape[1:]) for value in values])
        if part == "weight_shape":  # of the last part, and of no use
            continue
        if held.numel() == 1:  # one for all parts, which vLLM's kernels make of the largest
            expected = expected.max().reshape(1)
        if not torch.equal(bits(held.reshape(expected.shape)), bits(expected.to(held.dtype))):
            raise Differs(f"{parts[0][0]}.{part}: vLLM holds other bytes than the checkpoint")


class RoutedExperts:
    """What vLLM's own class of this name, by which it finds the group of config.json, is asked for here."""

    ckpt_gate_proj_name, ckpt_up_proj_name, ckpt_down_proj_name, moe_config = "gate_proj", "up_proj", "down_proj", None


def method_of_experts(config):
    """The class that vLLM picks for the experts: its name, because its constructor asks for more than there is here."""
    for module in pkgutil.iter_modules(experts.__path__, f"{experts.__name__}."):
        try:
            module = importlib.import_module(module.name)
        except ModuleNotFoundError:  # one for AMD's GPUs only
            continue
        for name in dir(module):
            if name.startswith("CompressedTensors") and name.endswith("MoEMethod") and name != "CompressedTensorsMoEMethod":
                setattr(module, name, lambda *_, name=name, **__: name)
    return experts.compressed_tensors_moe.CompressedTensorsMoEMethod.get_moe_method(
        config, RoutedExperts(), "model.layers.0.mlp.experts")


def check_cache(config, tensors):
    CompressedTensorsKVCacheMethod.validate_kv_cache_scheme(config.kv_cache_scheme)
    holder = torch.nn.Module()
    CompressedTensorsKVCacheMethod(config).create_weights(holder)
    places = {f"model.layers.{i}.self_attn.attn.{name}": value for i in range(2) for name, value in holder.named_parameters()}
    scales = {name: value for name, value in tensors.items() if name.endswith((".k_scale", ".v_scale"))}
    found = dict(config.get_cache_scale_mapper().apply(scales.items()))
    if found.keys() != {name for name in places if name.endswith((".k_scale", ".v_scale"))}:
        raise Differs(f"of the scales of keys and values vLLM finds {sorted(found)}")
    if any(places[name].shape != value.shape for name, value in found.items()):
        raise Differs("vLLM has another shape for scales of keys and values")


def parsed(text):
    config = CompressedTensorsConfig.from_config(json.loads(json.dumps(text["quantization_config"])))
    config.packed_modules_mapping = FUSED
    return config


def check_linears(text, tensors):
    """The class, and where it has a kernel: where there is none for a GPU, perhaps for a CPU."""
    for device in (PlatformEnum.CUDA, PlatformEnum.CPU):
        pretend(device)
        try:
            for layer, parts in layers(text, parsed(text)):
                check_loading(layer, parts, tensors)
        except ValueError as problem:
            if "Failed to find a kernel" not in str(problem) or device == PlatformEnum.CPU:
                raise
            continue
        return {"linears": type(layer.scheme).__name__, "device": device.name}


def look(folder):
    text = json.loads((folder / "config.json").read_text())
    tensors = {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}
    seen = {}
    try:
        config = parsed(text)
        if config.get_scheme(torch.nn.Linear(1, 1), "lm_head") is not None:
            raise Differs("vLLM takes lm_head for quantized")
        seen |= check_linears(text, tensors)
        if config.kv_cache_scheme is not None:
            check_cache(config, tensors)
        if text.get("num_local_experts"):
            pretend(PlatformEnum.CUDA)
            seen["experts"] = method_of_experts(config)
    except Exception as problem:  # Whatever it is, the other checkpoints are of interest.
        seen["failure"] = f"{type(problem).__name__}: {problem}"
    return seen


def main():
    options = VllmConfig(device_config=DeviceConfig(device="cpu"))
    options.model_config = types.SimpleNamespace(dtype=torch.bfloat16, quantization_config=None)
    parallel._TP = types.SimpleNamespace(rank_in_group=0, world_size=1)  # one GPU
    with set_current_vllm_config(options):
        seen = {folder.name: look(folder) for folder in sorted(Path(sys.argv[1]).iterdir())}
    versions = {name: importlib.metadata.version(name) for name in ("vllm", "compressed-tensors")}
    print(json.dumps({"versions": versions, "capability": CAPABILITY, "checkpoints": seen}))


if __name__ == "__main__":
    main()
