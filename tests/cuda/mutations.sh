#!/bin/sh
# mutations.sh - whether the tests catch faults in kernels. Run from the root of the repository:
#
#     sh tests/cuda/mutations.sh [COMPILER [WORD]]     WORD: only mutations whose name holds it
#     ALL=1 goes on after the first layer that catches; LAYERS="plain ptx" takes these alone
#
# tests/cuda/mutations.txt lists them. Lines `= FILE TEST` say in which header the mutations that follow are made, and
# the test program (tests/cuda/TEST.c) that must catch them; `name|sed -E expression` is one. The text without a fault
# must pass. Layers, the first that fails catches:
#
#     sample.h       plain asan msan tsan, and ptx (test_ptx, where there is an NVRTC): built over each mutant
#     oscar_cuda.h   plain ptx: the programs are built once and load the mutant's kernels (tests/cuda/mutant.c)
. tests/check.sh

compiler=${1:-cc} word=${2:-}
where=build/cuda/mutants
export ASAN_OPTIONS=detect_stack_use_after_return=1 TSAN_OPTIONS=exitcode=66:halt_on_error=1 KERNELS_STOP=1
sample_layers=plain
mkdir -p $where
echo 'int main(void) { return 0; }' >build/cuda/probe.c
works() { "$@" build/cuda/probe.c -o build/cuda/probe >/dev/null 2>&1 && build/cuda/probe >/dev/null 2>&1; }
works "$compiler" -fsanitize=address,undefined && sample_layers="$sample_layers asan"
works clang -fsanitize=memory && sample_layers="$sample_layers msan"
works clang -fsanitize=thread && sample_layers="$sample_layers tsan"

# LAYER FOLDER TEST: builds the test over the mutant and runs it. What does not compile is caught, too.
run_sample()
{
    options="-std=c99 -g -w -I$2 -I."
    case $1 in
        plain) set -- "$1" "$2" "tests/cuda/$3.c" "$compiler" -O1 ;;
        asan) set -- "$1" "$2" "tests/cuda/$3.c" "$compiler" -O1 -fsanitize=address,undefined \
                  -fno-sanitize-recover=all ;;
        msan) set -- "$1" "$2" "tests/cuda/$3.c" clang -O1 -fsanitize=memory ;;
        tsan) set -- "$1" "$2" "tests/cuda/$3.c" clang -O1 -fsanitize=thread ;;
        ptx) set -- "$1" "$2" "tests/cuda/test_ptx.c tests/cuda/ptx.c" "$compiler" -O2 ;;
    esac
    layer=$1 folder=$2 sources=$3
    shift 3
    "$@" $options $sources -o "$folder/$layer" -lm -ldl >"$folder/$layer.log" 2>&1 || return 1
    timeout 120 "$folder/$layer" >"$folder/$layer.log" 2>&1
}

# The programs that load kernels of mutants.
build_programs()
{
    options="-std=c99 -O1 -w -DOSCAR_NO_SIMD -I$where/none -I."
    "$compiler" -O2 $options -c tests/cuda/ptx.c -o $where/ptx.o &&
        "$compiler" $options tests/cuda/test_write.c -o $where/test_write -lm -ldl &&
        "$compiler" $options tests/cuda/test_write_ptx.c $where/ptx.o -o $where/test_write_ptx -lm -ldl &&
        "$compiler" $options -DKERNELS_PTX tests/cuda/test_attend.c $where/ptx.o -o $where/test_attend -lm -ldl
}

# LAYER FOLDER TEST
run_kernels()
{
    case $1-$3 in
        plain-*) "$compiler" -std=c99 -O1 -w -shared -fPIC "-I$2" -I. tests/cuda/mutant.c -o "$2/kernels.so" -lm \
                     >"$2/plain.log" 2>&1 || return 1 ;;
    esac
    export KERNELS="$2/kernels.so"
    case $1-$3 in
        plain-test_write) timeout 120 $where/test_write 0 && timeout 120 $where/test_write 60 7 ;;
        plain-test_attend) timeout 120 $where/test_attend few ;;
        ptx-test_write) timeout 300 $where/test_write_ptx quick ;;
        ptx-test_attend) timeout 300 $where/test_attend ptx compute_80 1 4 ;;
    esac >"$2/$1.log" 2>&1
}

# NAME FILE TEST: prints the layers that fail.
failing_layers()
{
    run=run_sample layers="$sample_layers ptx"
    if [ "$2" = oscar_cuda.h ]; then run=run_kernels layers="plain ptx"; fi
    for each in ${LAYERS:-$layers}; do
        $run "$each" "$where/$1" "$3" && continue
        printf '%s ' "$each"
        [ -n "${ALL:-}" ] || return
    done
}

mutate()   # NAME EXPRESSION FILE TEST
{
    rm -rf "${where:?}/$1"
    mkdir -p "$where/$1/$(dirname "$3")"
    sed -E "$2" "$3" >"$where/$1/$3"
    awk -f tests/cuda/extract.awk "$where/$1/$3" >"$where/$1/$(basename "$3" .h)_text.h"
    if [ "$1$3" = noneoscar_cuda.h ]; then
        build_programs >"$check_log" 2>&1 || { fail "the programs that load kernels"; check_end mutations; }
    fi
    caught=$(failing_layers "$1" "$3" "$4")
    : >"$check_log"
    if [ "$1" = none ]; then
        if [ -z "$caught" ]; then pass "the kernels without a mutation"
        else cat "$where/$1"/*.log >"$check_log"; fail "the kernels of $3 without a mutation: $caught"
        fi
    elif cmp -s "$3" "$where/$1/$3"; then fail "$1 does not apply to $3"
    elif [ -n "$caught" ]; then pass "$1"; printf 'caught %s: %s\n' "$1" "$caught"
    else fail "$1 is not caught"
    fi
    [ "$1" = none ] || rm -rf "${where:?}/$1"
}

file='' test=''
while IFS= read -r line; do
    case $line in
        '' | '#'*) ;;
        '= '*)
            file=${line#= }; test=${file#* }; file=${file%% *}
            mutate none 's/^//' "$file" "$test" ;;
        *"$word"*'|'*) mutate "${line%%|*}" "${line#*|}" "$file" "$test" ;;
    esac
done <tests/cuda/mutations.txt
check_end mutations
