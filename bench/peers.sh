#!/bin/sh
# peers.sh - fetches what others have made, builds it and times it beside the library, in one run each:
#
#     sh bench/peers.sh [--full]          or: make bench-peers; CC, CXX, PYTHON, BENCH_FLAGS as in the Makefile
#
#     ggml       CPU part of llama.cpp, out of the source package of llama-cpp-python (PyPI)     bench/peer_ggml.c
#     openblas   Debian's OpenBLAS, dgesvj and dsyevd                                             bench/bench_eigh.c
#     numpy      PyPI's NumPy: eigh, product with a matrix                                        bench/peer_numpy.py
#
# Everything goes to build/peers and nothing is installed; what is there already is not fetched or built again. What
# cannot be had is skipped by name. Output: build/bench/peer_*.log, whose figures bench/report.c puts into results.md.
set -u
cc=${CC:-cc}
cxx=${CXX:-c++}
python=${PYTHON:-python3}
flags=${BENCH_FLAGS:--O3}
full=${1:-}
peers=build/peers
logs=build/bench
mkdir -p "$peers" "$logs"

skip() { echo "skip $1: $2"; }

# A program whose figures are kept only if it ends well.
timed()   # NAME command...
{
    name=$1
    shift
    echo "== $name"
    if "$@" >"$logs/$name.tmp" 2>&1; then
        mv "$logs/$name.tmp" "$logs/$name.log"
        cat "$logs/$name.log"
    else
        cat "$logs/$name.tmp"
        rm -f "$logs/$name.tmp" "$logs/$name.log"
        skip "$name" "it failed"
    fi
}

# -- ggml ------------------------------------------------------------------------------------------------------------

ggml=$peers/ggml
package=llama-cpp-python

ggml_fetch()
{
    [ ! -f "$ggml/CMakeLists.txt" ] || return 0
    "$python" -m pip download --quiet --no-deps --no-binary "$package" -d "$peers/sdist" "$package" || return 1
    tar xzf "$peers"/sdist/llama_cpp_python-*.tar.gz -C "$peers" --strip-components=3 --wildcards \
        '*/vendor/llama.cpp/ggml/*'
    touch "$ggml/ggml.pc.in"        # the package leaves it out, and cmake wants to install it
}

# As ggml builds itself for one machine: -O3 -march=native, OpenMP.
ggml_build()
{
    [ ! -f "$ggml/build/src/libggml-cpu.a" ] || return 0
    cmake -S "$ggml" -B "$ggml/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
        -DGGML_CCACHE=OFF -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF \
        -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" &&
    cmake --build "$ggml/build" -j1 --target ggml-cpu
}

# The flags of OpenMP are those of the build: without it, it has none.
ggml_link()
{
    openmp=
    ! grep -q '^OpenMP_C_FLAGS:.*=-fopenmp' "$ggml/build/CMakeCache.txt" || openmp=-fopenmp
    "$cc" -std=c11 $flags -DBENCH_FLAGS="\"$cc $flags\"" -Wall -Wextra -Wno-unused-function -I. \
        -isystem "$ggml/include" -c bench/peer_ggml.c -o "$peers/peer_ggml.o" &&
    "$cxx" $openmp "$peers/peer_ggml.o" "$ggml/build/src/libggml-cpu.a" "$ggml/build/src/libggml-base.a" \
        -o "$peers/peer_ggml" -lm -pthread
}

if ! command -v cmake >/dev/null; then skip ggml "no cmake"
elif ! ggml_fetch; then skip ggml "no source package of $package from PyPI"
elif ! ggml_build >"$peers/ggml.txt" 2>&1; then skip ggml "it does not build ($peers/ggml.txt)"
elif ! ggml_link; then skip ggml "bench/peer_ggml.c does not build with this version"
else timed peer_ggml "$peers/peer_ggml" $full
fi

# -- OpenBLAS --------------------------------------------------------------------------------------------------------

openblas() { find "$peers/openblas" /usr/lib -name 'libopenblas.so.0' 2>/dev/null | head -n 1; }

openblas_fetch()
{
    [ -z "$(openblas)" ] || return 0
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    mkdir -p "$peers/openblas"
    (cd "$peers/openblas" && apt-get download --quiet libopenblas0-pthread && dpkg -x ./*.deb .) >/dev/null 2>&1
}

if ! openblas_fetch; then skip openblas "no package libopenblas0-pthread from Debian (apt-get update helps)"
elif ! "$cc" -std=c99 $flags -DBENCH_FLAGS="\"$cc $flags\"" -w -I. bench/bench_eigh.c -o "$peers/bench_eigh" \
    -lm -pthread -ldl; then skip openblas "bench/bench_eigh.c does not build"
else timed peer_openblas env BENCH_LAPACK="$(openblas)" OPENBLAS_NUM_THREADS=1 "$peers/bench_eigh"
fi

# -- NumPy -----------------------------------------------------------------------------------------------------------

numpy_fetch()
{
    "$python" -c 'import numpy' 2>/dev/null && return 0
    [ -d "$peers/numpy/numpy" ] || "$python" -m pip install --quiet --target "$peers/numpy" numpy || return 1
    PYTHONPATH=$peers/numpy "$python" -c 'import numpy' 2>/dev/null
}

if ! numpy_fetch; then skip numpy "neither installed nor to be had from PyPI"
elif ! "$cc" -std=c99 $flags -w -fPIC -shared -DOSCAR_IMPLEMENTATION -x c oscar.h -o "$peers/liboscar.so" -lm; then
    skip numpy "oscar.h does not build as a shared library"
else timed peer_numpy env OPENBLAS_NUM_THREADS=1 PYTHONPATH="$peers/numpy" "$python" bench/peer_numpy.py \
    "$peers/liboscar.so"
fi
