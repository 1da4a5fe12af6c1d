#!/bin/sh
# neon.sh - the NEON kernels on an emulated 64-bit ARM with byte products, and without them. Run from the root:
#     sh tests/neon.sh          all programs, about half an hour
#     sh tests/neon.sh short    what `make test` runs: write path, attention and sums against the scalar code
# Needs aarch64-linux-gnu-gcc and qemu-aarch64; what is missing is skipped. Some tests also under UBSan.
. tests/check.sh

out=build/neon
compiler=aarch64-linux-gnu-gcc
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
mkdir -p "$out"

build() { "$compiler" -static -std=c99 -w -I. "$@" -lm -pthread; }

run()   # CPU PROGRAM: what it says goes to said.txt, too
{
    "$emulator" -cpu "$1" "$2" >"$out/said.txt" 2>&1
    status=$?
    cat "$out/said.txt"
    return $status
}
with() { run max "$1" && ! grep -q '^skip NEON' "$out/said.txt"; }
without() { run cortex-a53 "$1" && grep -q '^skip NEON' "$out/said.txt"; }

programs()   # NAME...
{
    for name; do
        check_ok "$name builds" build -O1 "tests/$name.c" -o "$out/$name"
        check_ok "$name passes" with "$out/$name"
    done
}

sanitized()   # NAME...: where this compiler has a UBSan for the machine
{
    printf 'int main(void) { return 0; }\n' >"$out/probe.c"
    for name; do
        if ! build -fsanitize=undefined "$out/probe.c" -o "$out/probe" 2>/dev/null || ! "$emulator" "$out/probe"; then
            skip "$name under UBSan" "$compiler builds no running program with -fsanitize=undefined"
            continue
        fi
        check_ok "$name builds under UBSan" build -O1 -fsanitize=undefined -fno-sanitize-recover=all \
            "tests/$name.c" -o "$out/$name-ubsan"
        check_ok "$name passes under UBSan" with "$out/$name-ubsan"
    done
}

# Bytes of this machine's build and those of an ARM's where gcc may contract products and sums.
same_hashes()
{
    cc -std=c99 -O1 -w -I. tests/test_codec.c -o "$out/here" -lm && "$out/here" --hash >"$out/here.txt" &&
        build -O3 -ffp-contract=fast tests/test_codec.c -o "$out/there" &&
        "$emulator" -cpu max "$out/there" --hash >"$out/there.txt" && [ -s "$out/here.txt" ] &&
        diff "$out/here.txt" "$out/there.txt"
}

if ! command -v "$compiler" >/dev/null || [ -z "$emulator" ]; then
    skip "NEON kernels" "no $compiler or no qemu-aarch64"
    check_end neon
fi
programs test_isa
check_ok "a machine without byte products takes the scalar code" without "$out/test_isa"
check_ok "test_kernels builds where products and sums are contracted" build -O3 -ffp-contract=fast \
    tests/test_kernels.c -o "$out/test_kernels-fast"
check_ok "test_kernels passes where products and sums are contracted" with "$out/test_kernels-fast"
sanitized test_isa
if [ "${1:-}" != short ]; then
    programs test_kernels test_attend test_codec test_pages test_cache test_expected
    check_ok "same bytes here and there" same_hashes
    sanitized test_kernels
fi
check_end neon
