#!/bin/sh
# run.sh - the steps of `make test` that are more than a command.
#
#     run.sh probe CC                        which sanitizers work here, as make variables
#     run.sh compile LOG COMMAND...          runs a compiler; what it says goes to LOG. Never fails: `program` will
#     run.sh program BUILD NAME COMMAND...   runs a test program into build/test/BUILD/NAME.log, prints one line
#     run.sh missing BUILD REASON            a log that says that BUILD is skipped
#     run.sh sum LOG...                      failures in full, skips by name, and the closing line

number_line='^[a-z0-9_]*: [0-9]* passed, [0-9]* failed, [0-9]* skipped$'

# -- probe -----------------------------------------------------------------------------------------------------------

works()   # COMMAND LINE OF A COMPILER: builds a program with a thread and runs it
{
    mkdir -p build/probe
    cat >build/probe/probe.c <<'END'
#include <pthread.h>
#include <stdlib.h>
static void *run(void *data) { *(volatile int *)data = 1; return data; }
int main(void)
{
    pthread_t thread;
    int *data = (int *)calloc(1, sizeof *data), ok;
    if (!data || pthread_create(&thread, NULL, run, data) || pthread_join(thread, NULL)) return 1;
    ok = *data == 1;
    free(data);
    return !ok;
}
END
    "$@" build/probe/probe.c -o build/probe/probe -pthread >/dev/null 2>&1 && build/probe/probe >/dev/null 2>&1
}

probe()
{
    if works "$1" -fsanitize=address,undefined -fno-sanitize-recover=all; then echo "ASAN_CC = $1"; fi
    for compiler in "$1" clang gcc; do
        if works "$compiler" -fsanitize=thread; then echo "TSAN_CC = $compiler"; break; fi
    done
    if works "$1" -march=native; then echo "NATIVE_CC = $1"; fi
    if works clang -fsanitize=fuzzer-no-link,address; then echo "FUZZ_CC = clang"; fi
}

# -- programs --------------------------------------------------------------------------------------------------------

compile()
{
    log=$1; shift
    "$@" >"$log" 2>&1 || echo "failed: $*" >>"$log"
    [ -s "$log" ] || rm -f "$log"
}

program()
{
    build=$1 name=$2; shift 2
    log=build/test/$build/$name.log
    mkdir -p "build/test/$build"
    for program; do [ ! -f "$program.build" ] || cat "$program.build"; done >"$log"
    start=$(date +%s)
    limit=; command -v timeout >/dev/null 2>&1 && limit="timeout 900"
    $limit "$@" >>"$log" 2>&1 </dev/null
    status=$?
    line=$(grep "$number_line" "$log" | tail -n 1)
    if [ -z "$line" ] || { [ $status -ne 0 ] && [ "$line" != "${line#*, 0 failed}" ]; }; then
        printf 'FAILED %s ended with status %s\n%s: 0 passed, 1 failed, 0 skipped\n' "$*" $status "$name" >>"$log"
        line=$(tail -n 1 "$log")
    fi
    printf '%-7s %s, %s s\n' "$build" "$line" $(($(date +%s) - start))
}

missing()
{
    program "$1" none sh -c "echo 'skip $1: $2'; echo 'none: 0 passed, 0 failed, 1 skipped'"
}

# -- sum -------------------------------------------------------------------------------------------------------------

sum()
{
    for log; do
        if ! grep "$number_line" "$log" | tail -n 1 | grep -q ', 0 failed,' || grep -q '[0-9]: warning: ' "$log"; then
            printf '\n-- %s\n' "$log"
            grep -v "$number_line" "$log" | tail -n 100
        fi
    done
    printf '\n'
    for log; do
        where=${log#build/test/}
        grep '^skip ' "$log" | sed "s|^skip |skipped in ${where%.log}: |"
    done
    for log; do grep "$number_line" "$log" | tail -n 1; done | awk '
        { passed += $2; failed += $4; skipped += $6 }
        END { printf "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || passed == 0 }'
}

step=$1; shift
case $step in
    probe | compile | program | missing | sum) "$step" "$@" ;;
    *) echo "run.sh: no step $step" >&2; exit 2 ;;
esac
