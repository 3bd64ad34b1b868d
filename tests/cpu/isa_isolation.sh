#!/bin/sh
# isa_isolation.sh NAME OBJECT...: fails if one of the objects, which were compiled for an instruction set beyond the
# baseline, defines a weak symbol that is not about that instruction set (a template over its structs, whose names begin
# with NAME). The linker may pick such a symbol for baseline code, which then dies on a machine without it.
set -eu
name=$1
shift
[ $# -gt 0 ] || { echo "no objects for $name"; exit 1; }
for object in "$@"; do
  nm -C --defined-only "$object" | grep -q "$name" || { echo "$object has nothing of $name"; exit 1; }
  shared=$(nm -C --defined-only "$object" | awk '$2 ~ /^[WVu]$/' | grep -v "$name" || true)
  if [ -n "$shared" ]; then
    echo "$(basename "$object") defines symbols that other code may be linked to:"
    echo "$shared"
    exit 1
  fi
done
