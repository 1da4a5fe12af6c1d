#!/bin/sh
# clang.sh - PTX of kernel text by clang, without CUDA's headers: sh tests/cuda/clang.sh compute_80 IN.cu OUT.ptx
# For the architecture or the newest one before it that clang knows. CLANG names another clang. PTX 7.4 is the oldest
# that has all instructions of the text.
compile()
{
    "${CLANG:-clang}" -x cuda --cuda-device-only -nocudainc -nocudalib -Wno-unknown-cuda-version "$@"
}

for sm in 120 100 90 89 86 80 75; do
    [ $sm -le "${1#compute_}" ] && compile --cuda-gpu-arch=sm_$sm -E /dev/null >/dev/null 2>&1 && break
done
compile --cuda-gpu-arch=sm_$sm -Xclang -target-feature -Xclang +ptx74 -O3 -S "$2" -o "$3"
