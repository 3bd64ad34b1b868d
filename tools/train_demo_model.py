#!/usr/bin/env python3
"""Trains the language model that `kvant demo` evaluates, and writes data/demo_model/.

    pip install torch==2.13.0 transformers tokenizers safetensors        # into an environment of its own
    nice python tools/train_demo_model.py [--output FOLDER] [--steps N]

Run by hand; nothing of the build needs it. It learns the text of this repository as it was in the commit COMMIT, which
git must have, so the model need not change with the documents. The files of EVALUATION and CALIBRATION are kept
apart: they become the texts that the demo evaluates and calibrates with.

Deterministic: fixed seeds, one thread, deterministic algorithms of torch. The same processor and the same versions of
torch and tokenizers give the same files; other processors round some sums otherwise. Takes about 16 minutes on one
core. data/demo_model/README.md says what the shipped files came from; DEMO_PERPLEXITY of tests/tool/test_cli.py is what
this script prints of held-out.txt at its end.
"""

import argparse
import hashlib
import json
import math
import pathlib
import random
import subprocess
import time

import safetensors.torch
import tokenizers
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMIT = "74289fba743c3a54c69e9ff654f61e3793509574"
KINDS = (".md", ".h", ".cc", ".cu", ".cuh", ".py")
EVALUATION = ["docs/report.md", "include/kvant/observer.h", "src/model/token_text.h", "src/model/token_text.cc"]
CALIBRATION = ["docs/checkpoints.md", "include/kvant/fake_quantize.h", "src/model/blocks.h", "src/model/blocks.cc"]
# Prose is a fortieth of the text. Reading it several times as often makes it about a sixth.
PROSE_TIMES = 6

VOCABULARY = 1024
LENGTH = 512  # of a sequence
BATCH = 4  # sequences
WARM_UP = 100  # steps
RATE = 4e-3
SEED = 1
MAX_BYTES = 2_000_000

END_OF_TEXT = "<|endoftext|>"
CONFIG = {
    "_name_or_path": "kvant demo",  # the tool knows its own files by this name
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": LENGTH,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 0,
    "initializer_range": 0.05,
    "torch_dtype": "bfloat16",
}


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout.decode()


def read(path):
    return git("show", f"{COMMIT}:{path}")


def training_texts():
    """Files by name. Tables of numbers and other data are no text to learn from."""
    names = git("ls-tree", "-r", "--name-only", COMMIT).splitlines()
    kept_apart = set(EVALUATION + CALIBRATION)
    names = [n for n in names if n.endswith(KINDS) and n not in kept_apart]
    return {name: read(name) for name in names}


def train_tokenizer(texts):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END_OF_TEXT], show_progress=False,
                                             initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def training_ids(tokenizer, texts):
    """All texts in a fixed random order, each begun by END_OF_TEXT."""
    documents = []
    for name, text in texts.items():
        ids = [0] + tokenizer.encode(text).ids
        documents += [ids] * (PROSE_TIMES if name.endswith(".md") else 1)
    random.Random(SEED).shuffle(documents)
    return torch.tensor([i for ids in documents for i in ids])


def rate_at(step, steps):
    """Grows during the warm-up, then falls to zero in a line."""
    return RATE * min((step + 1) / WARM_UP, (steps - step) / max(1, steps - WARM_UP))


def train(model, ids, steps):
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=RATE, betas=(0.9, 0.95), foreach=True)
    generator = torch.Generator().manual_seed(SEED)
    begin, losses = time.monotonic(), []
    model.train()
    for step in range(steps):
        starts = torch.randint(len(ids) - LENGTH - 1, (BATCH,), generator=generator)
        batch = torch.stack([ids[s:s + LENGTH + 1] for s in starts.tolist()])
        logits = model(batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            mean = sum(losses[-50:]) / 50
            print(f"step {step + 1} of {steps}: loss {mean:.3f}, perplexity {math.exp(mean):.2f}, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)


def perplexity(model, ids):
    """As kvant eval measures it: sequences of LENGTH, each by itself."""
    model.eval()
    losses = []
    with torch.no_grad():
        for first in range(0, len(ids), LENGTH):
            part = torch.tensor([ids[first:first + LENGTH]])
            if part.shape[1] < 2:
                continue
            logits = model(part, use_cache=False).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, part[0, 1:], reduction="none").double())
    return math.exp(torch.cat(losses).mean())


def dump(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="trains the model of kvant demo")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "data" / "demo_model")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)

    texts = training_texts()
    evaluation, calibration = ("\n".join(map(read, names)) for names in (EVALUATION, CALIBRATION))
    tokenizer = train_tokenizer(texts.values())
    ids = training_ids(tokenizer, texts)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG, attn_implementation="sdpa"))
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(texts)} files, {sum(len(t.encode()) for t in texts.values())} bytes, {len(ids)} tokens; "
          f"{parameters} parameters", flush=True)
    train(model, ids, options.steps)

    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()
               if name != "lm_head.weight"}  # which is model.embed_tokens.weight
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    dump(folder / "config.json", CONFIG)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    dump(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT,
                                            "model_max_length": LENGTH})
    (folder / "held-out.txt").write_text(evaluation, encoding="utf-8")
    (folder / "calibration.txt").write_text(calibration, encoding="utf-8")

    model.load_state_dict({name: value.float() for name, value in tensors.items()}, strict=False)
    total = 0
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        total += len(data)
        print(f"{len(data):9} bytes  sha256 {hashlib.sha256(data).hexdigest()}  {path.name}")
    print(f"{total:9} bytes in all")
    for name in ("calibration.txt", "held-out.txt"):
        of_text = tokenizer.encode((folder / name).read_text(encoding="utf-8")).ids
        print(f"{name}: {len(of_text)} tokens, perplexity {perplexity(model, of_text):.4f}")
    if total > MAX_BYTES:
        raise SystemExit(f"{total} bytes are more than {MAX_BYTES}")


if __name__ == "__main__":
    main()
