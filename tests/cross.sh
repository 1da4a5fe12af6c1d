#!/bin/sh
# cross.sh - the tests of bytes on other machines, under qemu: aarch64, and s390x, which is big endian and evaluates
# float in double. Run from the root: sh tests/cross.sh. Needs NAME-gcc and qemu-NAME; what is missing is skipped.
. tests/check.sh

mkdir -p build/cross
for machine in aarch64 s390x; do
    compiler=$machine-linux-gnu-gcc
    emulator=$(command -v "qemu-$machine-static" || command -v "qemu-$machine")
    if ! command -v "$compiler" >/dev/null || [ -z "$emulator" ]; then
        skip "tests on $machine" "no $compiler or no qemu-$machine"
        continue
    fi
    for name in test_golden test_codec test_pairs test_save; do
        program=build/cross/$machine-$name
        check_ok "$machine $name builds" "$compiler" -static -std=c99 -O1 -w -I. "tests/$name.c" -o "$program" \
            -lm -pthread
        check_ok "$machine $name passes" "$emulator" "$program"
    done
done
check_end cross
