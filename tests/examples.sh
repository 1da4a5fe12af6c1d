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

# The C blocks of the README compile; the function of the first one is that which the demo runs.
readme_block() { awk -v n="$1" '/^```c$/ { on = ++block == n; next } /^```$/ && on { exit } on' README.md; }
readme_compiles()
{
    readme_block "$1" >"$out/readme.c"
    "$compiler" -std=c99 -Wall -Wextra -pedantic -Werror -I. -c "$out/readme.c" -o "$out/readme.o"
}
readme_is_the_demo()
{
    readme_block 1 | sed -n '/smallest_use/,$p' >"$out/readme.txt"
    sed -n '/^static void smallest_use/,/^}/p' examples/quickstart.c | sed 's/^static //' | diff "$out/readme.txt" -
}

for source in examples/*.c; do
    name=$(basename "$source" .c)
    check_ok "examples/$name.c compiles" build "$source" "$out/$name"
done
check_ok "make demo's program runs" demo
check_ok "attention in parts is attention" "$out/threads" 3
check_ok "the README's first program compiles" readme_compiles 1
check_ok "the README's program on a GPU compiles" readme_compiles 2
check_ok "the README's first program is the demo's" readme_is_the_demo

check_end examples
