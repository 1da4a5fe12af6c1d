#!/bin/sh
# gpu_check.sh - on a computer with a GPU: builds all tests of the device and the benchmark, and runs them, within eight
# minutes. Run from the root of the repository:
#
#     sh bench/gpu_check.sh               or: make gpu-check
#     sh bench/gpu_check.sh --mock        the same script in its smallest form over tests/cuda/mock_cuda.c
#
# Needs a C compiler, NVIDIA's driver, and NVRTC from a toolkit or from a wheel (OSCAR_NVRTC_PATH points at another).
#
#     OUT      where logs, figures and the plot go (build/gpu)         CC, PYTHON   cc, python3
#     SECONDS_ALL   starts no part after that time (450)
#
# A part is a program with a limit of its own; its output is $OUT/NAME.log. What is missing is skipped by name. Without
# a GPU everything is skipped, with status 0.
. tests/check.sh

mock=
[ "${1:-}" != --mock ] || mock=1
out=${OUT:-build/gpu}
compiler=${CC:-cc}
python=${PYTHON:-python3}
all=${SECONDS_ALL:-450}
binary=build/cuda/bin
began=$(date +%s)
driver= library=
mkdir -p "$out" build/bench $binary build/cuda/text

left() { echo $((all - $(date +%s) + began)); }

# RUN NAME LIMIT COMMAND...: its output is in $out/NAME.log, its seconds in $took, its status in $status.
run()
{
    name=$1 limit=$2 start=$(date +%s); shift 2
    [ "$(left)" -ge "$limit" ] || limit=$(left)
    [ "$limit" -ge 1 ] || limit=1
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    took=$(($(date +%s) - start))
    [ $status -ne 124 ] || echo "stopped after $limit s" >>"$out/$name.log"
}

# What the last run says of itself.
judge()
{
    why=$(sed -n "s/^skip $name: //p" "$out/$name.log" | head -n 1)
    if [ $status -ne 0 ]; then
        tail -n 25 "$out/$name.log" >"$check_log"
        fail "$name: status $status"
    elif [ -n "$why" ]; then skip "$name" "$why"
    else
        printf '%s: %s s, %s\n' "$name" $took "$(tail -n 1 "$out/$name.log")"
        pass "$name"
    fi
}

# PART NAME LIMIT COMMAND...
part()
{
    if [ "$(left)" -lt 15 ]; then skip "$1" "the time is over"; return; fi
    run "$@"
    judge
}

# -- what is there ---------------------------------------------------------------------------------------------------

facts()
{
    if [ -z "$mock" ] && command -v nvidia-smi >/dev/null; then
        timeout 20 nvidia-smi >"$out/nvidia-smi.log" 2>&1
        timeout 20 nvidia-smi -q >"$out/nvidia-smi-q.log" 2>&1
        query=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,clocks.sm,temperature.gpu,power.limit
        timeout 20 nvidia-smi --format=csv,noheader --query-gpu=$query
    elif [ -z "$mock" ]; then skip "nvidia-smi" "it is not there"
    fi
}

# NVRTC of a wheel of Python that is in no environment, where the library would look by itself.
wheel()
{
    "$python" - <<'END' 2>/dev/null
import glob, site
places = site.getsitepackages() + [site.getusersitepackages()]
found = sorted(sum((glob.glob(p + "/nvidia/*/lib/libnvrtc.so.*") for p in places), []))
print(found[-1] if found else "")
END
}

# Whether the example, the first program that is built, finds all it needs.
usable()
{
    run example 60 "$out/example" $steps $library
    ! grep -q '^No cache on a GPU here' "$out/example.log"
}

# A capability that NVRTC does not know makes the library ask it for PTX, which the mock can run.
take_mock()
{
    "$compiler" -std=c99 -O2 -w -I. -shared -fPIC -fvisibility=hidden tests/cuda/mock_cuda.c tests/cuda/ptx.c \
        -o "$out/libmockcuda.so" -lm -ldl >"$check_log" 2>&1 || { fail "the mock driver builds"; check_end gpu_check; }
    library=$out/libmockcuda.so
    driver="--driver $library"
}

# -- build -----------------------------------------------------------------------------------------------------------

# BUILD PROGRAM ARGUMENTS...: in the background; its words stay in $out/build-NAME.log.
build()
{
    program=$1; shift
    rm -f "$program"
    "$compiler" -std=c99 -O1 -I. -Ibuild/cuda/text "$@" -o "$program" -lm -ldl -pthread \
        >"$out/build-$(basename "$program").log" 2>&1 &
}

build_all()
{
    awk -f tests/cuda/extract.awk oscar_cuda.h >build/cuda/text/gpu_check.$$ &&
        mv build/cuda/text/gpu_check.$$ build/cuda/text/oscar_cuda_text.h
    build build/bench/cuda -O2 bench/cuda.c
    build build/bench/report bench/report.c
    build $binary/test_device -DOSCAR_NO_SIMD tests/cuda/test_device.c
    wait
    for program in build/bench/cuda build/bench/report $binary/test_device; do
        if [ -x $program ]; then pass "$program builds"
        else
            cp "$out/build-$(basename $program).log" "$check_log"
            fail "$program builds"
        fi
    done
}

# -- parts -----------------------------------------------------------------------------------------------------------

test_device()
{
    [ -x $binary/test_device ] || return
    part test_device 150 $binary/test_device $driver ${mock:+--tiny}
}

sanitizer()
{
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -n "$mock" ]; then skip compute-sanitizer "not over a mock"
    elif [ -z "$tool" ]; then skip compute-sanitizer "it is not there"
    elif [ -x $binary/test_device ]; then
        for kind in memcheck racecheck; do
            part $kind 60 "$tool" --tool $kind --target-processes application-only --error-exitcode 1 \
                $binary/test_device --tiny
        done
    fi
}

bench()
{
    [ -x build/bench/cuda ] || return
    if [ -n "$mock" ]; then part cuda 120 build/bench/cuda $driver --smoke; return; fi
    time=$(($(left) - 90))
    [ $time -lt 150 ] || time=150
    part cuda $((time + 40)) build/bench/cuda --seconds $time
}

peers()
{
    if [ -n "$mock" ]; then skip peers "not over a mock"; return; fi
    if ! command -v "$python" >/dev/null; then skip peers "no $python"; return; fi
    if [ "$(left)" -lt 15 ]; then skip peers "the time is over"; return; fi
    run peers 75 "$python" bench/peer_cuda.py 50
    grep '^skip ' "$out/peers.log"
    # What others need to compile or load is no fault of ours.
    if [ $status -ne 0 ]; then skip peers "status $status: $(tail -n 1 "$out/peers.log")"
    elif grep -q '^figure ' "$out/peers.log"; then pass peers
    else skip peers "none can be imported"
    fi
}

report()
{
    logs=
    for log in "$out/cuda.log" "$out/peers.log"; do
        if [ -f "$log" ] && grep -q '^figure ' "$log"; then logs="$logs $log"; fi
    done
    if [ -z "$logs" ]; then skip report "there are no figures"; return; fi
    part report 15 build/bench/report --cuda "$out/cuda.md" "$out/cuda.svg" $logs
}

# -- all of it -------------------------------------------------------------------------------------------------------

rm -f "$out"/*.log
facts
[ -z "$mock" ] || take_mock
steps=200
[ -z "$mock" ] || { steps=2; OSCAR_MOCK="capability=130 memory=1000000000"; export OSCAR_MOCK; }
build "$out/example" -DOSCAR_NO_SIMD examples/cuda.c
wait
if [ ! -x "$out/example" ]; then
    cp "$out/build-example.log" "$check_log"
    fail "examples/cuda.c builds"
    check_end gpu_check
fi
if ! usable && grep -q NVRTC "$out/example.log" && [ -z "${OSCAR_NVRTC_PATH:-}" ]; then
    OSCAR_NVRTC_PATH=$(wheel)
    if [ -n "$OSCAR_NVRTC_PATH" ]; then export OSCAR_NVRTC_PATH; else unset OSCAR_NVRTC_PATH; fi
fi
if ! usable; then
    skip "all of it" "$(sed -n 's/^No cache on a GPU here: //p' "$out/example.log")"
    check_end gpu_check
fi
judge
unset OSCAR_MOCK
build_all
test_device
bench
sanitizer
peers
report
check_end gpu_check
