# ahead.sh - kernel text compiled ahead of time, by nvcc and by clang, and images on a mock device. Sourced by cuda.sh;
# `long` tells the form.
#
#     examples/cuda_image --source   ->  nvcc: a cubin of each architecture, a fatbin; clang: PTX
#     test_image load                    each is loaded by oscar_cuda_load; PTX also runs
#     KERNELS_COMPILER                   clang's PTX in place of NVRTC's for the tests of values

ahead=build/cuda/ahead
# Layers that between them have all kinds, fits, bits and types.
ahead_plain="--q-heads 4 --kv-heads 1 --dim 64"
ahead_dense="--q-heads 8 --kv-heads 1 --dim 128 --dense --mean --metric --v-bits 4 --step-rows 2 --row-type bf16"
ahead_clip="--q-heads 4 --kv-heads 2 --k-dim 96 --v-dim 64 --clip 0 --group 32 --window-type f16"

image() { "$build/cuda_image" "$@"; }

loads()   # NAME FILE SM OPTIONS...
{
    name=$1; shift
    program "test_image, $name" "$build/test_image" load "$build/libmockcuda.so" "$@"
}

ahead_nvcc()
{
    for sm in 80 90 120; do
        if ! "$nvcc" --list-gpu-arch 2>/dev/null | grep -qx "compute_$sm"; then
            skip "nvcc for sm_$sm" "this nvcc does not know it"
            continue
        fi
        image $ahead_plain --sm $sm --source -o $ahead/plain.cu
        check_ok "C6.1 nvcc, cubin for sm_$sm" "$nvcc" -arch=sm_$sm -Werror all-warnings -cubin $ahead/plain.cu \
            -o $ahead/plain.cubin
        loads "cubin of nvcc, sm_$sm" $ahead/plain.cubin $sm $ahead_plain
    done
    image $ahead_dense --sm 80 --source -o $ahead/dense.cu
    check_ok "C6.1 nvcc, fatbin" "$nvcc" -Werror all-warnings -fatbin --no-compress \
        -gencode arch=compute_80,code=sm_80 -gencode "arch=compute_90,code=[sm_90,compute_90]" $ahead/dense.cu \
        -o $ahead/dense.fatbin
    for sm in 80 89 90 120; do loads "fatbin of nvcc, sm_$sm" $ahead/dense.fatbin $sm $ahead_dense; done
}

ahead_clang()
{
    for layer in plain dense clip; do
        eval "layer_options=\$ahead_$layer"
        image $layer_options --sm 75 --source -o $ahead/clang.cu
        check_empty "C6.1 clang, PTX, $layer" sh tests/cuda/clang.sh compute_75 $ahead/clang.cu $ahead/clang.ptx
        loads "PTX of clang, $layer, sm_75" $ahead/clang.ptx 75 $layer_options
        long || break
    done
    long || return
    export KERNELS_COMPILER="sh tests/cuda/clang.sh"
    program "test_attend, clang, compute_75" "$build/test_attend_ptx" ptx compute_75 1 2
    program "test_attend, clang, compute_80" "$build/test_attend_ptx" ptx compute_80 2 5
    program "test_write_ptx, clang" "$build/test_write_ptx" quick
    unset KERNELS_COMPILER
}

# Whether clang makes PTX at all: not every build has the target.
clang_makes_ptx()
{
    command -v clang >/dev/null || return 1
    echo '__attribute__((global)) void f(void) {}' >$ahead/probe.cu
    sh tests/cuda/clang.sh compute_75 $ahead/probe.cu $ahead/probe.ptx >/dev/null 2>&1
}

ahead_header()   # the image as an array in a program
{
    image $ahead_plain --sm 80 --source --header layer -o $ahead/layer.h || return 1
    image $ahead_plain --sm 80 --source -o $ahead/layer.txt || return 1
    printf '#include <stdio.h>\n#include "layer.h"\nint main(void)\n%s\n' \
        '{ return fwrite(layer, 1, layer_size - 1, stdout) != layer_size - 1; }' >$ahead/array.c
    "$compiler" -std=c99 -Wall -Wextra -pedantic -Werror $ahead/array.c -o $ahead/array || return 1
    $ahead/array | cmp - $ahead/layer.txt
}

ahead_of_time()
{
    rm -rf $ahead
    mkdir -p $ahead
    built cuda_image "$compiler" $options -O1 examples/cuda_image.c -lm -ldl || return
    built test_image "$compiler" $options -O1 -rdynamic tests/cuda/test_image.c -lm -ldl || return
    check_ok "cuda_image --header makes a C array" ahead_header
    check_fails "cuda_image says what a shape lacks" "kv_heads" image --q-heads 4 --dim 64 --source -o $ahead/none
    if [ -n "$nvcc" ]; then ahead_nvcc; else skip "images of nvcc" "$no_nvcc"; fi
    if clang_makes_ptx; then ahead_clang; else skip "images of clang" "no clang that makes PTX"; fi
}

# -- the versions of NVRTC that `make nvrtc` fetched -----------------------------------------------------------------

matrix_versions="11.8.89 12.1.105 12.4.127 12.9.86 13.5.37"

matrix_library() { ls "build/nvrtc/$1"/libnvrtc.so* 2>/dev/null | head -n 1; }

# Values: the PTX of the oldest and of the newest version.
matrix_values()
{
    for version in 11.8.89 13.5.37; do
        OSCAR_NVRTC_PATH=$(matrix_library $version)
        [ -n "$OSCAR_NVRTC_PATH" ] || continue
        export OSCAR_NVRTC_PATH
        program "test_attend, NVRTC $version, compute_75" "$build/test_attend_ptx" ptx compute_75 1 2
        program "test_attend, NVRTC $version, compute_80" "$build/test_attend_ptx" ptx compute_80 2 5
        program "test_write_ptx, NVRTC $version" "$build/test_write_ptx" quick
    done
    unset OSCAR_NVRTC_PATH
}

# The oldest and the newest take all layers, those between them half.
matrix_one()   # VERSION
{
    case $1 in 11.8.89|13.5.37) layers_word= ;; *) layers_word=some ;; esac
    long || layers_word=short
    OSCAR_NVRTC_PATH=build/nvrtc/$1 "$build/test_image" matrix $layers_word >"$ahead/$1.log" 2>&1
    echo $? >"$ahead/$1.status"
}

# Two halves at a time. Each version leaves its output and its status.
matrix()
{
    there=
    long || matrix_versions=11.8.89
    for version in $matrix_versions; do
        if [ -n "$(matrix_library $version)" ]; then there="$there $version"
        else skip "NVRTC $version" "not in build/nvrtc: make nvrtc"
        fi
    done
    [ -n "$there" ] || return 0
    { for version in $there; do case $version in 11.*|12.1.*|12.4.*) matrix_one $version ;; esac; done; } &
    for version in $there; do case $version in 12.9.*|13.*) matrix_one $version ;; esac; done
    wait
    for version in $there; do
        program "test_image, NVRTC $version" sh -c "cat $ahead/$version.log; exit \$(cat $ahead/$version.status)"
        grep '^NVRTC ' $ahead/$version.log
    done
    ! long || matrix_values
}
