#!/bin/sh
# examples.sh - every example compiles without a warning, and those that need nothing but the repository run.
# Run from the root of the repository: sh tests/examples.sh [compiler, default cc]
. tests/check.sh

compiler=${1:-cc}
out=build/examples
mkdir -p "$out"

build() { "$compiler" -std=c99 -O2 -Wall -Wextra -pedantic -Werror -I. "$1" -o "$2" -lm -pthread; }

demo()   # the demo prints its figures, draws, and writes a rotations file
{
    rm -f "$out/demo.safetensors" "$out/demo.svg"
    "$out/quickstart" examples/data/qkv.safetensors "$out/demo.safetensors" "$out/demo.svg" >"$out/demo.txt" || return 1
    grep -q '^figure demo\.' "$out/demo.txt" || { echo "no figures"; return 1; }
    grep -q '</svg>' "$out/demo.svg" || { echo "no plot"; return 1; }
    [ -s "$out/demo.safetensors" ] || { echo "no rotations file"; return 1; }
}

for source in examples/*.c; do
    name=$(basename "$source" .c)
    check_ok "examples/$name.c compiles" build "$source" "$out/$name"
done
check_ok "make demo's program runs" demo

check_end examples
