#!/bin/sh
# bytes.sh - the bytes of codes, pages and files do not depend on the compiler, its options or the machine.
# Run from the root of the repository: sh tests/bytes.sh [compilers, default "gcc clang"]
# Each build of test_codec prints its hashes (test_codec --hash); all must print the same.
. tests/check.sh

out=build/bytes
mkdir -p "$out"
rm -f "$out"/*.txt

same_hashes()   # LAUNCHER ("" to run directly) COMPILER FLAGS...
{
    launcher=$1; shift
    "$@" -std=c99 -I. tests/test_codec.c -o "$out/program" -lm || return 1
    $launcher "$out/program" --hash >"$out/now.txt" || return 1
    [ -s "$out/now.txt" ] || { echo "printed nothing"; return 1; }
    [ -f "$out/first.txt" ] || cp "$out/now.txt" "$out/first.txt"
    diff "$out/first.txt" "$out/now.txt"
}

runs()   # LAUNCHER COMPILER FLAGS...
{
    launcher=$1; shift
    command -v "$1" >/dev/null 2>&1 || return 1
    printf '#include <stdio.h>\nint main(void) { return puts("runs") < 0; }\n' >"$out/probe.c"
    "$@" "$out/probe.c" -o "$out/probe" >/dev/null 2>&1 && $launcher "$out/probe" >/dev/null 2>&1
}

hashes()   # LAUNCHER COMPILER FLAGS...
{
    name=$(shift; echo "$*")
    if runs "$@"; then check_ok "same bytes: $name" same_hashes "$@"
    else skip "same bytes: $name" "no such compiler, or its programs do not run here"
    fi
}

for compiler in ${1:-gcc clang}; do
    hashes "" "$compiler" -O2
    hashes "" "$compiler" -O3 -march=native -ffp-contract=fast
done
hashes "" gcc -O0
hashes "" gcc -O2 -m32 -mfpmath=387
hashes "" gcc -O2 -m32 -msse2 -mfpmath=sse
hashes "qemu-aarch64-static" aarch64-linux-gnu-gcc -O2 -static
hashes "qemu-s390x-static" s390x-linux-gnu-gcc -O2 -static

check_end bytes
