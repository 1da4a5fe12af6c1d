#!/bin/sh
# packaging.sh - the headers in other people's builds: every standard and warning, C and C++, several copies in one
# program.
# Run from the root of the repository: sh tests/packaging.sh [compilers, default "gcc clang"]
# Compilers that are missing are skipped by name. Objects go to build/packaging.
. tests/check.sh

compilers=${1:-"gcc clang"}
out=build/packaging/$(echo "$compilers" | tr ' /' '__')
unit=tests/pkg/implementation.c
mkdir -p "$out"

strict="-pedantic-errors -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion -Wcast-qual
    -Wstrict-prototypes -Wundef -Wvla -Werror"
usual="-Wall -Wextra -Wpedantic -Werror"
usual_cpp="-Wall -Wextra -pedantic -Werror"
switches=$(grep -E '^ *# *(if|ifdef|ifndef|elif)' oscar.h | grep -oE '\bOSCAR_NO_[A-Z0-9_]+' |
    sort -u | sed 's/^/-D/')

compiles() { echo 'int main(void) { return 0; }' | "$@" -x c - -o "$out/probe" >/dev/null 2>&1; }
have() { command -v "$1" >/dev/null 2>&1; }
cpp_of() { case $1 in gcc*) echo "g++${1#gcc}";; clang*) echo "clang++${1#clang}";; *) echo "${CXX:-c++}";; esac; }
build() { "$@" -I.; }
build_and_run() { build "$@" -o "$out/program" -lm && "$out/program"; }

# -- one compiler: warnings, standards, switches ---------------------------------------------------------------------

check_c()
{
    for std in c99 c11 c17 gnu99; do
        check_ok "C7.2 $1 -std=$std, strict warnings" build "$1" -std=$std $strict -fsyntax-only $unit
        check_ok "C7.2 $1 -std=$std, declarations alone" build "$1" -std=$std $strict -fsyntax-only \
            -include oscar.h -x c /dev/null
    done
    for level in "-O0" "-Os" "-O2" "-O3 -march=native" "-O2 -DNDEBUG"; do
        if compiles "$1" $level; then
            check_ok "C7.2 $1 $level, strict warnings" build "$1" -std=c99 $strict $level -c $unit -o "$out/level.o"
        else
            skip "C7.2 $1 $level" "this compiler has no such option"
        fi
    done
    for option in -O1 -O2 -DNDEBUG $switches; do
        check_ok "C7.1 $1 static copy, one call, $option" build_and_run "$1" $usual $option tests/pkg/one_call.c
    done
    check_ok "$1: names that other headers take" build_and_run "$1" $usual tests/pkg/crowded.c
    check_fails "$1 -ffast-math is refused" "fast-math" build "$1" -ffast-math -fsyntax-only $unit
    for half in MALLOC FREE; do
        check_fails "C7.3 $1: OSCAR_$half alone is refused" "define both OSCAR_MALLOC" \
            build "$1" "-DOSCAR_$half(x)=0" -fsyntax-only $unit
    done
}

check_cpp()
{
    for std in c++11 c++17 c++20; do
        check_ok "C7.5 $1 -std=$std, implementation" build "$1" -std=$std $usual_cpp -c -x c++ $unit -o "$out/cpp.o"
        check_ok "C7.5 $1 -std=$std, declarations" build "$1" -std=$std $usual_cpp -fsyntax-only -DENTRY=entry \
            tests/pkg/unit_cpp.cpp
    done
    check_ok "C7.5 $1 -O2, implementation" build "$1" -std=c++11 $usual_cpp -O2 -c -x c++ $unit -o "$out/cpp.o"
}

# -- several units in one program ------------------------------------------------------------------------------------

object()   # COMPILER SOURCE NAME FLAGS...
{
    compiler=$1 source=$2 name=$3; shift 3
    "$compiler" $usual -I. "$@" -c "tests/pkg/$source" -o "$out/$name.o"
}

program()   # COMPILER FIRST SECOND THIRD UNIT...: links the units with main.c and runs
{
    compiler=$1 first=$2 second=$3 third=$4; shift 4
    units=; for name; do units="$units $out/$name.o"; done
    "$compiler" -DFIRST=$first -DSECOND=$second -DTHIRD=$third tests/pkg/main.c $units -o "$out/program" -lm &&
        "$out/program"
}

two_units()   # C and C++ declarations, the implementation elsewhere
{
    object "$1" implementation.c implementation && object "$1" unit.c in_c -DENTRY=in_c &&
        object "$2" unit_cpp.cpp in_cpp -DENTRY=in_cpp && program "$1" in_c in_cpp in_c implementation in_c in_cpp
}

implementation_in_cpp()   # the other way round: implemented in C++, called from C
{
    object "$2" unit_cpp.cpp in_cpp -DOSCAR_IMPLEMENTATION -DENTRY=in_cpp && object "$1" unit.c in_c -DENTRY=in_c &&
        program "$1" in_c in_cpp in_c in_c in_cpp
}

twice() { object "$1" twice.c twice && program "$1" first first first twice; }

static_copies()
{
    object "$1" unit.c copy_a -O1 -DOSCAR_STATIC -DOSCAR_IMPLEMENTATION -DENTRY=copy_a &&
        object "$1" unit.c copy_b -DOSCAR_STATIC -DOSCAR_IMPLEMENTATION -DENTRY=copy_b &&
        program "$1" copy_a copy_b copy_a copy_a copy_b
}

namespaces()   # two renamed copies and a plain one
{
    object "$1" unit.c one -DOSCAR_IMPLEMENTATION -DOSCAR_NAMESPACE=one_ -DENTRY=one &&
        object "$1" unit.c two -DOSCAR_IMPLEMENTATION -DOSCAR_NAMESPACE=two_ -DENTRY=two &&
        object "$1" unit.c plain -DOSCAR_IMPLEMENTATION -DENTRY=plain && program "$1" one two plain one two plain
}

check_units()
{
    if have "$2"; then
        check_ok "C7.7 $1 and $2: implementation in C, calls from C and C++" two_units "$1" "$2"
        check_ok "C7.7 $1 and $2: implementation in C++, calls from both" implementation_in_cpp "$1" "$2"
    else
        skip "C7.7 C and C++ in one program" "no $2"
    fi
    check_ok "C7.7 $1: included twice, implementation after a plain include" twice "$1"
    check_ok "C7.7 $1: two static copies in one program" static_copies "$1"
    check_ok "$1: three copies side by side, two of them renamed" namespaces "$1"
}

# -- symbols ---------------------------------------------------------------------------------------------------------

api() { awk '/^ *== 3 / { exit }
             /^OSCAR_API/ && match($0, /oscar_[a-z0-9_]+\(/) { print substr($0, RSTART, RLENGTH - 1) }' "$1"; }

globals_of() { nm -g "$out/$1.o" | awk 'NF == 3 && $2 ~ /^[A-TV-Z]$/ { print $3 }'; }

globals_are_the_api()   # OBJECT PREFIX
{
    api oscar.h | sed "s/^/$2/" | sort >"$out/api.txt"
    globals_of "$1" | grep -vx "${3:-none}" | sort | diff "$out/api.txt" - || true
}

# The instruction set in use is the only thing that may be written to after the program has been loaded.
writable_data()
{
    "$1" -O1 -fno-pic -I. -c $unit -o "$out/data.o" || return 1
    nm "$out/data.o" | awk 'NF == 3 && $2 ~ /^[BbCDd]$/ && $3 !~ /^oscar__isa/ { print "writable: " $3 }'
}

math="fmaf? sqrtf? floorf? ceilf? fabsf? expf? exp2f? logf? log2f? log10f? log1pf? powf? tanhf? sinf? cosf? sincosf?
    ldexpf? frexpf? scalbnf? fmodf? hypotf? fminf? fmaxf? rintf? nearbyintf? truncf? roundf? copysignf? l?lrintf?"

needs_no_libc()
{
    "$1" -O1 -I. -c tests/pkg/no_libc.c -o "$out/no_libc.o" || return 1
    allowed="mem(cpy|move|set|cmp|chr)|bcmp|str(len|cmp|ncmp|chr)|user_(allocate|release)"
    allowed="$allowed|_GLOBAL_OFFSET_TABLE_|__cpu_model|$(echo $math | tr ' ' '|')"
    nm -u "$out/no_libc.o" | awk '{ print $NF }' | grep -vxE "$allowed" |
        sed 's/^/needs from outside: /'
}

check_symbols()
{
    if ! have nm; then skip "symbols of the object file" "no nm"; return; fi
    check_ok "$1: implementation for nm" object "$1" implementation.c implementation
    check_empty "$1: the globals are the functions of the API" globals_are_the_api implementation ""
    check_ok "$1: renamed copy for nm" object "$1" implementation.c renamed -DOSCAR_NAMESPACE=one_
    check_empty "$1: OSCAR_NAMESPACE renames every global" globals_are_the_api renamed one_
    check_empty "$1: no writable data but the instruction set" writable_data "$1"
    check_empty "C7.3 $1: OSCAR_NO_STDIO with OSCAR_MALLOC needs no malloc, stdio, abort" needs_no_libc "$1"
}

# -- oscar_cuda.h ----------------------------------------------------------------------------------------------------

# Without the vectors of oscar.h, which are tested above and take long to compile.
cuda_unit="-DOSCAR_NO_SIMD -I. tests/pkg/cuda.c"

cuda_globals()   # OBJECT PREFIX
{
    { api oscar.h; api oscar_cuda.h; } | sed "s/^/$2/" | sort >"$out/api.txt"
    globals_of "$1" | sort | diff "$out/api.txt" - || true
}

# Of what oscar.h does not need, only the loader of libraries and a few functions of the C library.
cuda_needs()
{
    "$1" -O1 -DOSCAR_NO_SIMD -I. -c $unit -o "$out/plain.o" || return 1
    nm -u "$out/plain.o" | awk '{ print $NF }' | sort >"$out/plain.txt"
    nm -u "$out/cuda.o" | awk '{ print $NF }' | sort | comm -13 "$out/plain.txt" - |
        grep -vxE 'dl(open|sym|close|error)|getenv|getpid|f?getc|_?_?IO_getc|str(chr|str)|memchr|__ctype_.*' |
        grep -vx nextafterf |
        sed 's/^/needs from outside: /'
}

# Libraries that a program asks for; the loader itself is one of them on some systems.
cuda_libraries()
{
    readelf -d "$out/program" | awk '/\(NEEDED\)/ { print $NF }' |
        grep -vxE '\[(libc|libm|libdl|ld-linux.*|libpthread)\.so(\.[0-9]+)?\]' | sed 's/^/needs /'
}

cuda_writable()
{
    nm "$out/cuda.o" | awk 'NF == 3 && $2 ~ /^[BbCDd]$/ && $3 !~ /^oscar__isa/ { print "writable: " $3 }'
}

check_cuda()
{
    if ! echo '#include <dlfcn.h>' | "$1" -fsyntax-only -x c - 2>/dev/null; then
        skip "oscar_cuda.h with $1" "no dlfcn.h"
        return
    fi
    for std in c99 c11 gnu17; do
        check_ok "C7.2 $1 -std=$std, oscar_cuda.h, strict warnings" "$1" -std=$std $strict -O0 -c $cuda_unit \
            -o "$out/cuda_std.o"
    done
    check_ok "C7.2 $1 oscar_cuda.h, declarations alone" build "$1" -std=c99 $strict -fsyntax-only \
        -include oscar_cuda.h -x c /dev/null
    check_ok "C7.1 $1 oscar_cuda.h, static copy, one call" "$1" $usual -O1 -DOSCAR_STATIC -DONE_CALL $cuda_unit \
        -o "$out/program" -lm -ldl
    check_ok "C7.1 $1 oscar_cuda.h, static copy runs" "$out/program"
    if have readelf; then check_empty "$1: oscar_cuda.h links to libc, libm, libdl alone" cuda_libraries
    else skip "libraries that oscar_cuda.h needs" "no readelf"
    fi
    check_ok "$1 oscar_cuda.h, OSCAR_NO_STDIO and NDEBUG" "$1" $usual -O2 -DOSCAR_NO_STDIO -DNDEBUG -c $cuda_unit \
        -o "$out/cuda_std.o"
    check_ok "$1 oscar_cuda.h, names that other headers take" "$1" $usual -O0 -DCROWDED -c $cuda_unit \
        -o "$out/cuda_std.o"
    if have nm; then
        check_ok "$1: oscar_cuda.h for nm" "$1" $usual -O1 -fno-pic -c $cuda_unit -o "$out/cuda.o"
        check_empty "$1: oscar_cuda.h, the globals are the functions of the API" cuda_globals cuda ""
        check_empty "$1: oscar_cuda.h needs libc, libm, libdl alone" cuda_needs "$1"
        check_empty "$1: oscar_cuda.h has no writable data" cuda_writable
        check_ok "$1: oscar_cuda.h, renamed copy" "$1" $usual -O0 -DOSCAR_NAMESPACE=one_ -c $cuda_unit \
            -o "$out/cuda_renamed.o"
        check_empty "$1: OSCAR_NAMESPACE renames every global of oscar_cuda.h" cuda_globals cuda_renamed one_
    else
        skip "symbols of oscar_cuda.h" "no nm"
    fi
}

check_cuda_cpp()
{
    for std in c++11 c++17; do
        check_ok "C7.5 $1 -std=$std, oscar_cuda.h" "$1" -std=$std $usual_cpp -O0 -c -x c++ $cuda_unit \
            -o "$out/cuda_std.o"
    done
}

# -- 32 bits ---------------------------------------------------------------------------------------------------------

check_32()
{
    printf '#include <stdio.h>\nint main(void) { return 0; }\n' >"$out/probe.c"
    if ! "$1" -m32 "$out/probe.c" -o "$out/probe" 2>/dev/null || ! "$out/probe"; then
        skip "$1 -m32" "no 32-bit C library for it"
        return
    fi
    check_ok "$1 -m32, strict warnings" build "$1" -m32 -std=c99 $strict -O1 -c $unit -o "$out/level.o"
    check_ok "$1 -m32 runs" build_and_run "$1" -m32 -O1 -DOSCAR_IMPLEMENTATION -DENTRY=entry -DFIRST=entry \
        -DSECOND=entry -DTHIRD=entry tests/pkg/unit.c tests/pkg/main.c
}

# -- Windows ---------------------------------------------------------------------------------------------------------

windows_libraries()
{
    x86_64-w64-mingw32-objdump -p "$out/cuda.exe" | awk '/DLL Name:/ { print tolower($3) }' |
        grep -vxE 'kernel32\.dll|msvcrt\.dll|ucrtbase\.dll|api-ms-win-crt-.*' || true
}

check_windows()
{
    cross=x86_64-w64-mingw32-gcc
    if ! have $cross; then skip "a program for Windows" "no $cross"; return; fi
    check_ok "$cross, both headers" $cross $usual -O0 -DOSCAR_STATIC -DONE_CALL $cuda_unit -o "$out/cuda.exe"
    check_empty "$cross: links to the C library and the kernel alone" windows_libraries
}

for compiler in $compilers; do
    if have "$compiler"; then
        check_c "$compiler"
        check_units "$compiler" "$(cpp_of "$compiler")"
        check_symbols "$compiler"
        check_cuda "$compiler"
        check_32 "$compiler"
        [ "$compiler" != gcc ] || check_windows
    else
        skip "packaging with $compiler" "no $compiler"
    fi
    if have "$(cpp_of "$compiler")"; then
        check_cpp "$(cpp_of "$compiler")"
        check_cuda_cpp "$(cpp_of "$compiler")"
    else skip "packaging with $(cpp_of "$compiler")" "no $(cpp_of "$compiler")"
    fi
done

check_end "packaging_${compilers%% *}"
