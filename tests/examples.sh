#!/bin/sh
# examples.sh - every example compiles without a warning, and those that need no file of the user's run.
# Run from the root of the repository: sh tests/examples.sh [compiler, default cc]
. tests/check.sh

compiler=${1:-cc}
out=build/examples
mkdir -p "$out"

build() { "$compiler" -std=c99 -O2 -Wall -Wextra -pedantic -Werror -I. "$1" -o "$2" -lm -pthread; }

for source in examples/*.c; do
    name=$(basename "$source" .c)
    check_ok "examples/$name.c compiles" build "$source" "$out/$name"
done

check_end examples
