#!/bin/sh
# shapes.sh - random layers by everything that makes pages: the CPU's scalar code, each of its instruction sets, the
# kernels as C, their PTX in the interpreter; and the attention of as many layers against double precision. Run from the
# root of the repository:
#     sh tests/cuda/shapes.sh [COMPILER [COUNT [SEED]]]     1000 layers take two cores about half an hour, nearly all of
#                                                           it for the PTX (where there is an NVRTC)
set -e
compiler=${1:-cc} count=${2:-1000} seed=${3:-1}
build=build/cuda/bin
text=build/cuda/text
mkdir -p $build $text
awk -f tests/cuda/extract.awk oscar_cuda.h >$text/oscar_cuda_text.h
options="-std=c99 -O2 -g -Wall -Wextra -pedantic -Wno-unused-function -ffp-contract=off -I. -I$text"
# fmaf as an instruction: calls of the C library take most of the time, and round alike.
echo 'int main(void) { return 0; }' >$build/probe.c
if grep -qsw fma /proc/cpuinfo && "$compiler" -mfma $build/probe.c -o $build/probe 2>/dev/null; then
    options="$options -mfma"
fi
rm -f $build/probe $build/probe.c
"$compiler" $options tests/cuda/test_write.c -o $build/shapes_write -lm -ldl
"$compiler" $options -DOSCAR_NO_SIMD tests/cuda/test_attend.c -o $build/shapes_attend -lm -ldl
"$compiler" $options -DOSCAR_NO_SIMD tests/cuda/test_write_ptx.c tests/cuda/ptx.c -o $build/shapes_ptx -lm -ldl
half=$((count / 2))
rm -f $build/shapes_failed
{ $build/shapes_ptx shapes $half $seed >$build/shapes_first.log 2>&1 || touch $build/shapes_failed; } &
$build/shapes_write $count $seed || touch $build/shapes_failed
$build/shapes_attend random $count $seed || touch $build/shapes_failed
$build/shapes_ptx shapes $count $seed $half || touch $build/shapes_failed
wait
cat $build/shapes_first.log
[ ! -e $build/shapes_failed ]
