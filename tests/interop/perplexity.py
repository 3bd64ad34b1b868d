"""The perplexity and the speed of a model beside transformers.

    python3 tests/interop/perplexity.py build/release/kvant FOLDER [TOKENS]

Needs torch and transformers. FOLDER is a language model in f32 with its tokenizer.json. The text is the documentation of
kvant; both run the same ids in sequences of 512 on two threads. The perplexities must agree to 1e-4.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
import transformers

TOLERANCE = 1e-4
LENGTH = 512
THREADS = 2


def main():
    kvant, folder = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 8192
    root = pathlib.Path(__file__).resolve().parents[2]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(root.glob("docs/*.md")))
    ids = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))(text)["input_ids"]
    ids = ids[:count]
    torch.set_num_threads(THREADS)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    losses = []
    begin = time.perf_counter()
    with torch.no_grad():
        for first in range(0, len(ids), LENGTH):
            part = torch.tensor([ids[first:first + LENGTH]])
            if part.shape[1] < 2:
                continue
            logits = model(part).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, part[0, 1:], reduction="none").double())
    torch_seconds = time.perf_counter() - begin
    expected = math.exp(torch.cat(losses).mean())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(" ".join(map(str, ids)))
        file.flush()
        begin = time.perf_counter()
        run = subprocess.run([kvant, "-q", "eval", folder, "--tokens", file.name, "--length", str(LENGTH), "--threads",
                              str(THREADS), "--json"], check=True, capture_output=True)
        seconds = time.perf_counter() - begin
    got = json.loads(run.stdout)["original"]["perplexity"]
    difference = abs(got / expected - 1)
    print(f"perplexity over {len(ids)} tokens: kvant {got:.6f}, transformers {expected:.6f}, difference {difference:.1e}")
    print(f"kvant {len(ids) / seconds:.0f} tokens/s (all of the program), transformers {len(ids) / torch_seconds:.0f} tokens/s "
          f"(forward passes only): {torch_seconds / seconds:.2f} times as fast")
    return 0 if difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
