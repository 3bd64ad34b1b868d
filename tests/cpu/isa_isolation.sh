#!/bin/sh
# isa_isolation.sh libkvant.a: fails if an object that was compiled for an instruction set beyond the baseline defines a
# weak symbol that is not about that instruction set's lanes. The linker may pick such a symbol for baseline code, which
# then dies on a machine without it.
set -eu
case "$1" in *.a) ;; *) echo "only a static library can be inspected: $1"; exit 0 ;; esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && ar x "$1")
found=0
for object in "$folder"/*_avx2.cc.o; do
  [ -e "$object" ] || { echo "no avx2 objects in $1"; exit 1; }
  found=1
  shared=$(nm -C --defined-only "$object" | awk '$2 ~ /^[WVu]$/' | grep -v 'Avx2' || true)
  if [ -n "$shared" ]; then
    echo "$(basename "$object") defines symbols that other code may be linked to:"
    echo "$shared"
    exit 1
  fi
done
[ "$found" = 1 ]
