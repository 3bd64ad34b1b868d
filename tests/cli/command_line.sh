#!/bin/sh
# command_line.sh KVANT: exit codes, what goes to which stream, and sentences for what was typed wrong.
set -u
kvant=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
complain() { echo "$*"; failed=1; }

# expect CODE PATTERN ARGUMENTS: this exit code, and the pattern on stderr (on stdout where the code is 0).
expect() {
  code=$1 pattern=$2
  shift 2
  "$kvant" "$@" >"$folder/out" 2>"$folder/err" </dev/null
  got=$?
  [ "$got" = "$code" ] || complain "kvant $*: exit code $got, wanted $code: $(cat "$folder/err")"
  if [ "$code" = 0 ]; then stream=out; else stream=err; fi
  grep -qE -- "$pattern" "$folder/$stream" || complain "kvant $*: no '$pattern' in std$stream: $(cat "$folder/$stream")"
  if [ "$code" = 2 ] && [ -s "$folder/out" ]; then complain "kvant $*: printed on stdout"; fi
}

expect 0 '^kvant [0-9]+\.[0-9]+\.[0-9]+$' --version
expect 0 '^kvant [0-9]+\.[0-9]+\.[0-9]+$' -V
expect 0 '^kvant [0-9]' quantize --version
expect 2 'Usage: kvant COMMAND'
expect 0 '^Usage: kvant COMMAND' help
expect 0 '^Usage: kvant quantize IN --output OUT' help quantize
expect 0 '^Usage: kvant eval ORIGINAL \[QUANTIZED\]' help eval
expect 2 "'quantise' is not one of quantize, " help quantise
for command in '' quantize inspect compare verify demo info bench completion help; do
  expect 0 '^Examples:' $command --help
  expect 0 '^Usage: kvant' $command -h
done

# Typed wrong.
expect 2 "^kvant: unknown command 'quantise'; did you mean 'quantize'\? try 'kvant --help'$" quantise in -o out
expect 2 "^kvant: unknown command 'frobnicate'; try" frobnicate
expect 2 "^kvant: unknown option '--shceme'; did you mean '--scheme'\? try 'kvant quantize --help'$" quantize in -o out --shceme w8a8
expect 2 "unknown option '--outptu'; did you mean '--output'" quantize in --outptu out
expect 2 "unknown option '--smoth=0.5'; did you mean '--smooth'" quantize in -o out --smoth=0.5
expect 2 "unknown option '--jsn'" demo --jsn
expect 2 "^kvant: the option '--threads' goes after the command; try 'kvant quantize --help'$" --threads 2 quantize in -o out
expect 2 "^kvant: the option '--max-memory=2G' goes after the command; try 'kvant --help'$" --max-memory=2G
expect 2 "^kvant: the option '-o' goes after the command" -o out quantize in
expect 2 "unexpected argument 'c'; try 'kvant verify --help'$" verify a c
expect 2 '^kvant: IN is missing; try' quantize -o out
expect 2 '^kvant: --output is missing; try' quantize in
expect 2 '^kvant: QUANTIZED is missing; try' compare a
expect 2 '^kvant: --scheme needs a value; try' quantize in -o out --scheme
expect 2 '^kvant: --scheme is given more than once; try' quantize in -o out --scheme w8a8 --scheme w4a16
expect 2 "^kvant: --scheme: scheme 'w8': must be one of w8a8, w8a8-static, w8a16, w4a16, .*nvfp4a16; try" quantize in -o out --scheme w8
expect 2 "^kvant: --max-memory: '2X' has an unknown unit" quantize in -o out --max-memory 2X
expect 2 "^kvant: --max-memory: '1M' is less than 64M, the memory" quantize in -o out --max-memory 1M
expect 2 "^kvant: --threads: 'many' must be a whole number of at least 0" inspect in --threads many
expect 2 "^kvant: --threads: '-1' must be a whole number" inspect in --threads -1
expect 2 "^kvant: --top: '0' must be a whole number of at least 1" compare a b --top 0
expect 2 "^kvant: --smooth: '1.5' is not a number from 0 to 1" quantize in -o out --stats s --smooth 1.5
expect 2 "^kvant: --smooth: '-1' is not a number from 0 to 1" quantize in -o out --stats s --smooth -1
expect 2 'fp8 has no asymmetric form that loaders accept; w8a8, ' quantize in -o out --scheme fp8 --asymmetric
expect 2 '^kvant: --scheme: scheme FP8: .* fp8 is its FP8_DYNAMIC' quantize in -o out --scheme FP8
expect 2 "^kvant: --override: 'fp8' must be PATTERN=SCHEME, or PATTERN=none; try" quantize in -o out --override fp8
expect 2 "^kvant: --override: scheme 'fp9': must be one of w8a8, " quantize in -o out --override 're:.*=fp9'
expect 2 "^kvant: --group-size: 'many' is neither a whole number nor auto; try" quantize in -o out --scheme w4a16 --group-size many
expect 2 'mxfp4 does not take a group size; w8a16, w4a16, w4a8 do' quantize in -o out --scheme mxfp4 --group-size auto
expect 2 '^kvant: --scheme nvfp4 needs activation statistics' quantize in -o out --scheme nvfp4
expect 2 '^kvant: --smooth needs activation statistics' quantize --smooth in -o out
expect 2 '^kvant: --scheme w8a8-static needs activation statistics' quantize in -o out --scheme w8a8-static
expect 2 "needs activation statistics; give them with --stats FILE, which 'kvant calibrate' writes" quantize --smooth in -o out
expect 2 '--smooth-groups has no effect without --smooth' quantize in -o out --smooth-groups llama
expect 2 '^kvant: w8a8 does not take a group size; w8a16, w4a16, w4a8 do; try' quantize in -o out --group-size 64
expect 2 '^kvant: --stats has no effect on w8a16 by itself; --smooth, --method gptq, --kv-fp8, --scale search, --report and the schemes .*w8a8-static' quantize in -o out --scheme w8a16 --stats s
expect 2 '^kvant: --output is missing; try' quantize in
expect 2 'use one of them' quantize in -o out --resume --force
expect 2 "'tcsh' is not one of bash, zsh, fish" completion tcsh

# Understood, and failed: the sentence names the file. --smooth does not eat the checkpoint.
expect 1 "^kvant: $folder/none: " inspect "$folder/none"
expect 1 "^kvant: $folder/none: " quantize --stats "$folder/s" --smooth "$folder/none" -o "$folder/out_folder"
expect 1 "^kvant: $folder/none: " compare "$folder/none" "$folder/none"
"$kvant" verify "$folder/none" >"$folder/out" 2>&1 && complain "verify of nothing: exit code 0"
grep -q "$folder/none" "$folder/out" || complain "verify of nothing: $(cat "$folder/out")"
printf 'garbage' > "$folder/bad.safetensors"
expect 1 "^kvant: $folder/bad.safetensors: " inspect "$folder/bad.safetensors" --json
[ -s "$folder/out" ] && complain "a refusal printed on stdout: $(cat "$folder/out")"
# A folder called like a command.
mkdir "$folder/demo"
(cd "$folder" && "$kvant" inspect demo 2>err; grep -q '^kvant: demo: ' err) || complain "kvant inspect demo: $(cat "$folder/err")"
expect 1 "^kvant: -strange: " inspect -- -strange

# Accepted before and after the command.
expect 0 'backends' -q info
expect 0 'backends' info -q
expect 0 '"version"' info --json
KVANT_FORCE_ISA=scalar "$kvant" info | grep -q 'instruction set  scalar (KVANT_FORCE_ISA=scalar)' || complain "KVANT_FORCE_ISA=scalar"
KVANT_FORCE_ISA=abacus "$kvant" info >/dev/null 2>"$folder/err" && complain "KVANT_FORCE_ISA=abacus was taken"
grep -q 'abacus' "$folder/err" || complain "KVANT_FORCE_ISA=abacus: $(cat "$folder/err")"

# Not a terminal: no escapes.
"$kvant" info | grep -q "$(printf '\033')" && complain "escape sequences in a pipe"

# A reader that goes away, a disk that is full, a stream that is closed.
"$kvant" completion bash 2>"$folder/err" | head -c 1 >/dev/null
[ -s "$folder/err" ] && complain "a closed pipe: $(cat "$folder/err")"
if [ -w /dev/full ]; then
  "$kvant" info >/dev/full 2>"$folder/err" && complain "/dev/full: exit code 0"
  grep -q '^kvant: standard output: no space left on device' "$folder/err" || complain "/dev/full: $(cat "$folder/err")"
fi
"$kvant" info >&- 2>"$folder/err" && complain "closed stdout: exit code 0"
grep -q '^kvant: standard output: ' "$folder/err" || complain "closed stdout: $(cat "$folder/err")"

# Completion knows what --help knows.
for shell in bash zsh fish; do
  "$kvant" completion "$shell" > "$folder/$shell" || complain "completion $shell"
  for word in quantize w8a8-static smooth-groups max-memory verbose; do
    grep -q -- "$word" "$folder/$shell" || complain "completion $shell: no $word"
  done
done
if command -v bash >/dev/null 2>&1; then
  complete_words() {
    bash -c 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }; _kvant; echo "${COMPREPLY[@]}"' \
      bash "$folder/bash" "$@"
  }
  [ "$(complete_words kvant quan)" = quantize ] || complain "bash: kvant quan: $(complete_words kvant quan)"
  [ "$(complete_words kvant quantize --sche)" = --scheme ] || complain "bash: --sche: $(complete_words kvant quantize --sche)"
  [ "$(complete_words kvant quantize --scheme w4a1)" = w4a16 ] || complain "bash: --scheme w4a1: $(complete_words kvant quantize --scheme w4a1)"
  [ "$(complete_words kvant -v quantize --scheme = nvfp4a)" = nvfp4a16 ] || complain "bash: --scheme=nvfp4a"
  [ "$(complete_words kvant completion z)" = zsh ] || complain "bash: completion z: $(complete_words kvant completion z)"
fi
exit $failed
