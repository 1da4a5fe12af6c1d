#!/bin/sh
# cuda.sh - the tests of oscar_cuda.h without a GPU. Run from the root of the repository:
#     sh tests/cuda.sh [COMPILER [short|long [PART]]]     PART: tools or kernels alone, or of the tools' the images
#
#     kernel text as C on the CPU (tests/cuda/shim.h): plain, with AddressSanitizer, MemorySanitizer, ThreadSanitizer
#     the PTX that NVRTC makes of the text, in an interpreter (tests/cuda/ptx.c)
#     host code over a driver and an NVRTC that are fakes (tests/cuda/fake.c), and the mocks for whole programs
#     (tests/cuda/mock_cuda.c, mock_nvrtc.c)
#     images made ahead of time, and the compile matrix of the NVRTC versions in build/nvrtc (tests/cuda/ahead.sh)
#
# short: fewer shapes and architectures, as part of `make test`.
# What the computer lacks is skipped by name: clang for two sanitizers, NVRTC, nvcc, qemu for the shim on aarch64.
. tests/check.sh
. tests/cuda/ahead.sh

compiler=${1:-cc} form=${2:-long} part=${3:-tools kernels}
build=build/cuda/bin
text=build/cuda/text
options="-std=c99 -g -Wall -Wextra -pedantic -Wno-unused-function -I. -I$text"
: "${ASAN_OPTIONS:=detect_stack_use_after_return=1}" "${TSAN_OPTIONS:=exitcode=66}"
export ASAN_OPTIONS TSAN_OPTIONS

# Adds the counts of a test program to those of this script; shows what it says about failures and skips.
program()
{
    name=$1; shift
    "$@" >"$check_log" 2>&1
    status=$?
    line=$(grep '^[a-z0-9_]*: [0-9]* passed, [0-9]* failed, [0-9]* skipped$' "$check_log" | tail -n 1)
    counts=$(printf '%s' "$line" | tr -dc '0-9 ' | awk '{ print $(NF - 2), $(NF - 1), $NF }')
    if [ -z "$line" ]; then fail "$name ended with status $status"; return; fi
    # A sanitizer's report ends a program that counted no failure.
    if [ $status -ne 0 ] && [ "$line" != "${line#*, 0 failed}" ]; then fail "$name: status $status"; fi
    set -- $counts
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    if [ "$2" -ne 0 ]; then printf 'FAILED %s\n' "$name"; head -n 60 "$check_log"; else grep '^skip ' "$check_log"; fi
    [ -z "${TEST_VERBOSE:-}" ] || printf '  %s: %s\n' "$name" "$line"
}

# BUILT NAME COMPILER ARGUMENTS...: whether a program could be built.
built()
{
    name=$1; shift
    rm -f "$build/$name"
    check_ok "$name builds" "$@" -o "$build/$name"
    grep 'warning: ' "$check_log"
    [ -x "$build/$name" ]
}

works() { echo 'int main(void) { return 0; }' >build/cuda/probe$$.c &&
          "$@" build/cuda/probe$$.c -o build/cuda/probe$$ >/dev/null 2>&1 && build/cuda/probe$$ >/dev/null 2>&1; }

# nvcc: one that works here, else empty, and no_nvcc says why. CUDA 11.8 knows sm_90; each refuses newer compilers.
find_nvcc()
{
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) no_nvcc="no nvcc"
    [ -n "$nvcc" ] || return 0
    echo '__global__ void f(void) {}' >build/cuda/probe$$.cu
    "$nvcc" -arch=sm_90 -cubin build/cuda/probe$$.cu -o build/cuda/probe$$.cubin >/dev/null 2>&1 && return
    no_nvcc="$nvcc compiles nothing for sm_90 here" nvcc=
}

# The shim's tests in one build; then the fault that only this build sees.
shim()
{
    kind=$1 fault=$2 word=$3; shift 3
    built "test_shim_$kind" "$@" tests/cuda/test_shim.c -lm || return
    program "test_shim, $kind" "$build/test_shim_$kind"
    [ -z "$fault" ] || check_fails "test_shim, $kind: $fault" "$word" "$build/test_shim_$kind" "$fault"
}

shim_sanitized()
{
    address="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    if works "$compiler" $address; then shim asan overrun heap-buffer-overflow "$compiler" $options $address
    else skip "the shim under AddressSanitizer" "$compiler builds no running program with it"
    fi
    if works clang -fsanitize=memory; then
        shim msan unwritten use-of-uninitialized-value clang $options -O1 -fsanitize=memory
    else skip "the shim under MemorySanitizer" "no clang with -fsanitize=memory"
    fi
    if works clang -fsanitize=thread; then   # gcc's switches fibers 10 times slower
        shim tsan race "data race" clang $options -O1 -fsanitize=thread
        check_fails "test_shim, tsan: global_race" "data race" "$build/test_shim_tsan" global_race
    else skip "the shim under ThreadSanitizer" "no clang with -fsanitize=thread"
    fi
}

shim_elsewhere()
{
    emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
    if [ -z "$emulator" ] || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
        skip "the shim on aarch64" "no aarch64-linux-gnu-gcc or no qemu-aarch64"
    elif built test_shim_aarch64 aarch64-linux-gnu-gcc -static $options -O1 tests/cuda/test_shim.c -lm; then
        program "test_shim, aarch64" "$emulator" "$build/test_shim_aarch64"
    fi
}

ptx()
{
    built test_ptx "$compiler" $options -O2 tests/cuda/test_ptx.c tests/cuda/ptx.c -lm -ldl || return
    program test_ptx "$build/test_ptx"
    if [ -z "$nvcc" ]; then skip "kernels compiled ahead of time" "$no_nvcc"; return; fi
    "$build/test_ptx" print >build/cuda/sample.cu
    check_ok "nvcc compiles the sample kernels" "$nvcc" -arch=sm_90 -Werror all-warnings -cubin build/cuda/sample.cu \
        -o build/cuda/sample.cubin
}

mock()
{
    library="$options -O1 -shared -fPIC -fvisibility=hidden"
    built libmockcuda.so "$compiler" $library tests/cuda/mock_cuda.c tests/cuda/ptx.c -lm -ldl || return
    built libmocknvrtc.so "$compiler" $library tests/cuda/mock_nvrtc.c || return
    built test_mock "$compiler" $options -O1 -rdynamic tests/cuda/test_mock.c -lm -ldl || return
    program test_mock "$build/test_mock" "$build/libmockcuda.so" "$build/libmocknvrtc.so"
    "$build/test_mock" "$build/libmockcuda.so" touch >"$check_log" 2>&1
    status=$?
    if [ $status -gt 128 ]; then pass "device memory is closed to the host"
    else fail "device memory is closed to the host: status $status"
    fi
}

# -- oscar_cuda.h ----------------------------------------------------------------------------------------------------

# The kernels need no vectors of oscar.h, which take long to compile.
kernels="$options -DOSCAR_NO_SIMD"

long() { [ "$form" = long ]; }

# PROGRAM KIND ARGUMENTS COMPILER FLAGS...: builds tests/cuda/PROGRAM.c in one way and runs it.
kernel_test()
{
    tested=$1 kind=$2 arguments=$3; shift 3
    built "${tested}_$kind" "$@" $kernels tests/cuda/$tested.c -lm -ldl || return
    program "$tested, $kind" "$build/${tested}_$kind" $arguments
}

kernels_as_c()
{
    if long; then write=200 attend=all; else write="40 3" attend=few; fi
    kernel_test test_write plain "$write" "$compiler" -O1
    kernel_test test_attend plain "$attend" "$compiler" -O1
    if long && works "$compiler" -march=native; then
        kernel_test test_write contracted "60 5" "$compiler" -O3 -march=native -ffp-contract=fast
    fi
    address="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    if long; then write=30 attend=few; else write=0 attend=tiny; fi
    if works "$compiler" $address; then
        kernel_test test_write asan "$write" "$compiler" $address
        kernel_test test_attend asan "$attend" "$compiler" $address
    else skip "oscar_cuda.h's kernels under AddressSanitizer" "$compiler builds no running program with it"
    fi
    if works clang -fsanitize=memory; then
        kernel_test test_write msan 0 clang -O1 -fsanitize=memory
        kernel_test test_attend msan tiny clang -O1 -fsanitize=memory
    else skip "oscar_cuda.h's kernels under MemorySanitizer" "no clang with -fsanitize=memory"
    fi
    if works clang -fsanitize=thread; then
        if long; then kernel_test test_write tsan 0 clang -O1 -fsanitize=thread; fi
        kernel_test test_attend tsan tiny clang -O1 -fsanitize=thread
    else skip "oscar_cuda.h's kernels under ThreadSanitizer" "no clang with -fsanitize=thread"
    fi
}

# Section 3 included as C, with the constants of one layer: no arrays of variable length are left then.
kernels_included()
{
    "$build/test_attend_ptx" text dk=64 group=4 2>/dev/null >build/cuda/layer.cu
    { echo '#include "tests/cuda/shim.h"'
      grep -E '^#define OSCAR_[A-Z0-9_]+ -?[0-9]+$' build/cuda/layer.cu
      echo '#define OSCAR_CUDA_HOST_KERNELS'
      echo '#include "oscar_cuda.h"'; } >build/cuda/included.c
    check_ok "section 3 included as C" "$compiler" -std=c99 -pedantic -w -Werror=vla -I. -fsyntax-only \
        build/cuda/included.c
    if [ -z "$nvcc" ]; then skip "oscar_cuda.h's kernels compiled ahead of time" "$no_nvcc"; return; fi
    check_ok "C6.1 nvcc compiles the kernels of a layer" "$nvcc" -arch=sm_90 -Werror all-warnings -cubin \
        build/cuda/layer.cu -o build/cuda/layer.cubin
}

# The instructions of attention's main loop, in the code for a GPU.
counted()
{
    COUNT_PROGRAM="$build/test_attend_ptx" sh tests/cuda/count.sh check "$form" >"$check_log" 2>&1
    case $? in
        0) pass "attention's main loop is within its budget" ;;
        2) skip "attention's main loop is within its budget" "$(tail -n 1 "$check_log")" ;;
        *) fail "attention's main loop is within its budget" ;;
    esac
}

kernels_as_ptx()
{
    check_ok "ptx.o" "$compiler" $options -O2 -c tests/cuda/ptx.c -o "$build/ptx.o"
    built test_attend_ptx "$compiler" $kernels -O1 -DKERNELS_PTX tests/cuda/test_attend.c "$build/ptx.o" -lm -ldl ||
        return
    kernels_included
    if long; then
        program "test_attend, compute_75" "$build/test_attend_ptx" ptx compute_75 1 5
        program "test_attend, compute_80" "$build/test_attend_ptx" ptx compute_80 1 9
        program "test_attend, compute_90" "$build/test_attend_ptx" ptx compute_90 9 13
    else program "test_attend, compute_80" "$build/test_attend_ptx" ptx compute_80 1 2
    fi
    counted
    built test_write_ptx "$compiler" $kernels -O1 tests/cuda/test_write_ptx.c "$build/ptx.o" -lm -ldl || return
    if long; then program test_write_ptx "$build/test_write_ptx"
    else program test_write_ptx "$build/test_write_ptx" short
    fi
}

# The test for a GPU, over the mock of one.
device()
{
    built test_device "$compiler" $kernels -O1 tests/cuda/test_device.c -lm -ldl || return
    if long; then here="" mock="--shapes 4"; else here=--tiny mock=--tiny; fi
    program test_device "$build/test_device" $here   # a real one
    program "test_device, mock" "$build/test_device" --driver "$build/libmockcuda.so" $mock
}

loader()
{
    shared="-shared -fPIC -fvisibility=hidden -w -std=gnu99 -O1 -g"
    check_ok "libfake.so" "$compiler" $shared tests/cuda/fake.c -o build/cuda/libfake.so
    check_ok "libfake_lame.so" "$compiler" $shared -DFAKE_LAME tests/cuda/fake.c -o build/cuda/libfake_lame.so
    ln -sf libfake.so build/cuda/libnvrtc.so.12
    echo 'int fake_builtins = 1;' >build/cuda/builtins.c
    check_ok "fake builtins" "$compiler" $shared build/cuda/builtins.c -o build/cuda/libnvrtc-builtins.so.12.4
    built test_loader "$compiler" $kernels -O1 tests/cuda/test_loader.c -lm -ldl || return
    rm -rf build/cuda/cache.*
    if long; then program test_loader "$build/test_loader"; else program test_loader "$build/test_loader" short; fi
}

# The cache on a device over the mock driver: kernels as PTX where there is an NVRTC, and as C.
device_cache()
{
    if long; then rounds=48 rounds_c=160; else rounds=4 rounds_c=16; fi   # from 160 on a graph is replayed 100 times
    mocks="$build/libmockcuda.so $build/libmocknvrtc.so"
    built test_cache "$compiler" $kernels -O1 -rdynamic tests/cuda/test_cache.c tests/cuda/cache_kernels.c -lm -ldl ||
        return
    program "test_cache, PTX" "$build/test_cache" $mocks $rounds 1
    program "test_cache, C" "$build/test_cache" $mocks $rounds_c 2 shim
    long || return
    address="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    if ! works "$compiler" $address; then
        skip "test_cache under AddressSanitizer" "$compiler builds no running program with it"
    elif built test_cache_asan "$compiler" $kernels $address -rdynamic tests/cuda/test_cache.c \
        tests/cuda/cache_kernels.c -lm -ldl; then
        program "test_cache, asan" "$build/test_cache_asan" $mocks 60 3 shim
    fi
}

# Whether a real model says the same with its cache on the mock as on the CPU.
model_on_gpu()
{
    model=build/models/smollm2-135m.gguf
    if [ ! -e $model ]; then skip "a model with its cache on the device" "no $model: make models"; return; fi
    built llm "$compiler" -std=c99 -O2 -w -I. examples/llm.c -lm -pthread -ldl || return
    words="generate $model three_rivers --chat --tokens 4"
    "$build/llm" $words 2>"$check_log" | head -n 1 >build/cuda/cpu.txt
    check_ok "a model with its cache on the device runs" "$build/llm" $words --gpu --driver "$build/libmockcuda.so"
    cp "$check_log" build/cuda/device.txt
    [ -s build/cuda/cpu.txt ] || fail "a model writes a text"
    check_ok "a model with its cache on the device writes the CPU's text" grep -qFf build/cuda/cpu.txt \
        build/cuda/device.txt
}

# What a GPU is asked, in its smallest form over the mock driver: the benchmark's own kernels, too.
gpu_check()
{
    check_ok "bench/gpu_check.sh over the mock driver" env OUT=build/cuda/gpu CC="$compiler" sh bench/gpu_check.sh \
        --mock
    grep '^skip ' "$check_log" | grep -v 'not over a mock'
    for what in 1 2 3; do
        check_fails "C10.2 bench/cuda.c finds a kernel's wrong values, $what" "[1-9] with wrong values" \
            env OSCAR_MOCK="capability=130" build/bench/cuda --driver build/cuda/gpu/libmockcuda.so --smoke \
            --spoil $what
    done
}

if [ "$(uname -s)" != Linux ]; then
    skip "CUDA kernels without a GPU" "the shim and the mocks are written for Linux"
    check_end cuda
fi
mkdir -p $build $text
find_nvcc
for header in tests/cuda/sample.h oscar_cuda.h; do   # another part may be running
    awk -f tests/cuda/extract.awk $header >build/cuda/text.$$
    mv build/cuda/text.$$ $text/"$(basename $header .h)"_text.h
done
case $part in *tools*)
    shim plain "" "" "$compiler" $options -O1
    shim ucontext "" "" "$compiler" $options -O1 -DSHIM_UCONTEXT
    shim contracted "" "" "$compiler" $options -O3 -ffp-contract=fast
    shim_sanitized
    shim_elsewhere
    ptx
    mock
    loader
    device_cache
    device
    if long; then model_on_gpu; fi
    kernels_as_ptx
    ahead_of_time
    matrix ;;
images)
    mock
    kernels_as_ptx
    ahead_of_time
    matrix ;;
esac
case $part in *kernels*) kernels_as_c ;; esac
rm -f build/cuda/probe$$*
case $form$part in long*tools*) gpu_check ;; esac
check_end cuda
