#!/bin/sh
# bytes.sh - the bytes of codes and pages do not depend on the compiler or its options (other machines: cross.sh).
# Run from the root of the repository: sh tests/bytes.sh [compilers, default "gcc clang"]
# Each build of test_codec prints its hashes (test_codec --hash); all must print the same.
. tests/check.sh

out=build/bytes
mkdir -p "$out"
rm -f "$out"/*.txt

same_hashes()   # COMPILER FLAGS...
{
    "$@" -std=c99 -I. tests/test_codec.c -o "$out/program" -lm || return 1
    "$out/program" --hash >"$out/now.txt" || return 1
    [ -s "$out/now.txt" ] || { echo "printed nothing"; return 1; }
    [ -f "$out/first.txt" ] || cp "$out/now.txt" "$out/first.txt"
    diff "$out/first.txt" "$out/now.txt"
}

hashes()   # COMPILER FLAGS...
{
    printf '#include <stdio.h>\nint main(void) { return puts("runs") < 0; }\n' >"$out/probe.c"
    if command -v "$1" >/dev/null 2>&1 && "$@" "$out/probe.c" -o "$out/probe" >/dev/null 2>&1 && "$out/probe" >/dev/null
    then check_ok "same bytes: $*" same_hashes "$@"
    else skip "same bytes: $*" "no such compiler, or its programs do not run here"
    fi
}

for compiler in ${1:-gcc clang}; do
    hashes "$compiler" -O2
    hashes "$compiler" -O3 -march=native -ffp-contract=fast
done
hashes gcc -O0
hashes gcc -O2 -m32 -mfpmath=387
hashes gcc -O2 -m32 -msse2 -mfpmath=sse

check_end bytes
