"""Statistics of `kvant calibrate` beside those of kvant.torch.calibrate, which watches transformers run.

    python tests/interop/calibration.py build/release/kvant [FOLDER]

Needs torch, transformers, and the package kvant on PYTHONPATH. A tiny random Llama, and the model in FOLDER if there is one,
read the same ids: kvant in sequences, transformers in batches whose last one is padded. Counts must be equal; the other
numbers must agree to 2e-5 of the largest of their tensor, which is what f32 sums in another order make of it.
"""

import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers

import kvant.torch

TOLERANCE = 2e-5
BASIC = ("absmax", "min", "max", "mean_square", "count")
DTYPES = {"F32": torch.float32, "I64": torch.int64, "F64": torch.float64}


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = [8 + size + offset for offset in entry["data_offsets"]]
        tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def padded_batches(ids, length, size):
    sequences = [ids[i:i + length] for i in range(0, len(ids), length)]
    for first in range(0, len(sequences), size):
        part = sequences[first:first + size]
        padded = torch.tensor([s + [1] * (length - len(s)) for s in part])
        mask = torch.tensor([[1] * len(s) + [0] * (length - len(s)) for s in part])
        yield {"input_ids": padded, "attention_mask": mask}


def compare(name, binary, folder, ids, length, size):
    with tempfile.TemporaryDirectory() as scratch:
        tokens, mine, theirs = [os.path.join(scratch, file) for file in ("ids.txt", "kvant", "torch")]
        with open(tokens, "w", encoding="utf-8") as file:
            file.write(" ".join(map(str, ids)))
        subprocess.run([binary, "-q", "calibrate", folder, "--tokens", tokens, "--length", str(length), "-o", mine], check=True,
                       stdout=subprocess.DEVNULL)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        kvant.torch.calibrate(model, padded_batches(ids, length, size), theirs)
        mine, theirs = read_safetensors(mine), read_safetensors(theirs)
    worst, where = 0.0, ""
    for key, wanted in theirs.items():
        # The table of embeddings, where the head has none of its own.
        got = mine[key if key in mine else key.replace("lm_head.", "model.embed_tokens.")]
        assert key.rsplit(".", 1)[1] in BASIC and got.dtype == wanted.dtype and got.shape == wanted.shape, key
        if key.endswith(".count"):
            assert torch.equal(got, wanted), f"{key}: {got} {wanted}"
        difference = float((got - wanted).abs().max() / wanted.abs().max())
        if difference > worst:
            worst, where = difference, key
    linears = len(theirs) // len(BASIC)
    print(f"{name}: {linears} linears, {len(ids)} tokens, {-len(ids) % length} of padding; largest difference {worst:.1e} ({where})")
    return worst <= TOLERANCE


def main():
    binary = sys.argv[1]
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(5)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        config = transformers.LlamaConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                                          intermediate_size=112, vocab_size=199, max_position_embeddings=256)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        ids = torch.randint(0, config.vocab_size, (5 * 24 + 7,)).tolist()
        good = compare("tiny Llama", binary, folder, ids, 24, 4) and good
    if len(sys.argv) > 2:
        vocabulary = transformers.AutoConfig.from_pretrained(sys.argv[2]).vocab_size
        ids = torch.randint(0, vocabulary, (4 * 128 + 50,)).tolist()
        good = compare(os.path.basename(sys.argv[2]), binary, sys.argv[2], ids, 128, 2) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
