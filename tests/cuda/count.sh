#!/bin/sh
# count.sh - what the main loop of attention costs, counted in the SASS that NVRTC makes: without a GPU. From the root,
# with NVRTC and nvdisasm (NVDISASM names it, else PATH, /usr/local/cuda/bin, or what `make nvrtc` fetched):
#     sh tests/cuda/count.sh 90 dk=128 group=8 mean=1   a layer on sm_90; options as of test_attend cubin
#     sh tests/cuda/count.sh table [ARCH...]            the table of docs/gpu.md: registers / instructions
#     sh tests/cuda/count.sh check [short]              1 if a loop is over the budget, has local memory or no IMMA
# A loop is a block of 64 tokens and a KV head. `worst`: bytes that the worst of a layer's kernels spills.
# COUNT_PROGRAM: tests/cuda/test_attend.c, where it is built already (with KERNELS_PTX).
program=${COUNT_PROGRAM:-build/cuda/count.$$.bin}
work=build/cuda/count.$$
disassembler=${NVDISASM:-$(command -v nvdisasm || ls /usr/local/cuda/bin/nvdisasm build/nvrtc/nvdisasm/nvdisasm \
    2>/dev/null | head -n 1)}
if [ -z "$disassembler" ]; then echo "count.sh: no nvdisasm: make nvrtc fetches one"; exit 2; fi
trap 'rm -rf $work.*' EXIT
if [ -z "${COUNT_PROGRAM:-}" ]; then
    mkdir -p "$work.text"
    awk -f tests/cuda/extract.awk oscar_cuda.h >"$work.text/oscar_cuda_text.h"
    ${CC:-cc} -std=c99 -O1 -w -I. "-I$work.text" -DOSCAR_NO_SIMD -DKERNELS_PTX tests/cuda/test_attend.c \
        tests/cuda/ptx.c -o "$program" -lm -ldl || exit 1
fi

# ARCH OPTIONS...: a line "registers N spills N worst N loop N IMMA N ...", or why there is none.
count()
{
    sm=$1; shift
    if ! "$program" cubin "$work.cubin" "sm=$sm" "$@" >"$work.log" 2>&1; then tail -n 1 "$work.log"; return 1; fi
    "$disassembler" -c "$work.cubin" >"$work.sass" && awk -f tests/cuda/count.awk "$work.log" "$work.sass"
}

# NAME OPTIONS...: a row of the table; bytes of spills in brackets.
row()
{
    name=$1; shift
    printf '| %s |' "$name"
    for arch in $archs; do
        count "$arch" alone=1 "$@" | awk '{ if ($1 != "registers") printf " - |"
            else printf " %s / %s%s |", $2, $8, ($4 > 0 ? " (" $4 ")" : "") }'
    done
    echo
}

table()
{
    archs=${*:-75 80 86 89 90 100 120}
    printf '| layer, query heads of a KV head |'; for arch in $archs; do printf ' sm_%s |' "$arch"; done
    printf '\n| --- |'; for arch in $archs; do printf ' --- |'; done; echo
    row "D=128, 1..4 (folded)" dk=128 group=4 mean=1
    row "D=128, 5..8" dk=128 group=8 mean=1
    row "D=128, 9 and more" dk=128 group=16 mean=1
    row "D=64, 1..4" dk=64 group=4 mean=1
    row "D=64, 5..8" dk=64 group=8 mean=1
    row "D=64, 9 and more" dk=64 group=16 mean=1
    row "D=256, 1..4" dk=256 group=4 mean=1
    row "D=256, 5..8" dk=256 group=8 mean=1
    row "D=512, 1..4" dk=512 group=4 mean=1
    row "D=576 and 512, 5..8" dk=576 dv=512 group=8 mean=1
    row "D=128, groups of 32, 5..8" dk=128 group=8 mean=1 g=32
    row "D=128, 4 bits, 5..8" dk=128 group=8 mean=1 bits=4
    row "D=128, CLIP, 1..4" dk=128 group=4 mean=1 clip=1
    row "D=128, CLIP, 5..8" dk=128 group=8 mean=1 clip=1
    row "D=128, no page mean, 1..4" dk=128 group=4 mean=-1
    row "D=128, no page mean, 5..8" dk=128 group=8 mean=-1
}

# Instructions of a block at D = 128 that predictions are made with: the prototype's, which knew no page mean, and one a
# token for the page mean. sm_NN, 1..4 query heads, 5..8.
budgets="80 666 794
90 666 725
100 640 704"

check()
{
    status=0
    echo "$budgets" >"$work.budgets"
    while read -r arch few many; do
        if [ "$1" = short ] && [ "$arch" != 90 ]; then continue; fi
        for group in 1 4 8; do
            for mean in 0 1; do
                if [ "$1" = short ] && [ $group$mean != 41 ] && [ $group$mean != 81 ]; then continue; fi
                most=$few; [ $group -lt 8 ] || most=$many
                line=$(count "$arch" alone=1 dk=128 group=$group mean=$((2 * mean - 1)) </dev/null)
                case $line in
                'no NVRTC'*) echo "count.sh: $line"; exit 2 ;;
                *'invalid value'*) echo "sm_$arch: NVRTC does not know it"; continue ;;
                esac
                echo "$line" | awk -v most=$((most + 64 * mean)) -v of="sm_$arch, group $group, page mean $mean" \
                    -v name="sm$arch.g$group.mean$mean" '
                    $1 != "registers" { print of ": " $0; exit 1 }
                    { for (i = 1; i < NF; i += 2) n[$i] = $(i + 1)
                      printf "%s: %d of %d instructions, %d IMMA, %d registers\n", of, n["loop"], most, n["IMMA"],
                             n["registers"]
                      printf "figure cuda.decode.regs.%s %d registers\n", name, n["registers"]
                      printf "figure cuda.decode.slots_per_token.%s %.4g instructions\n", name, n["loop"] / 64
                      if (n["loop"] > most) { print "over the budget"; bad = 1 }
                      if (n["IMMA"] < 64) { print "products are missing"; bad = 1 }
                      if (n["local"] || n["worst"]) { print "local memory"; bad = 1 } }
                    END { exit bad }' || status=1
            done
        done
    done <"$work.budgets"
    return $status
}

case ${1:-} in
'') sed -n '2,7s/^# *//p' "$0"; exit 1 ;;
table) shift; table "$@" ;;
check) check "${2:-long}" ;;
*) count "$@" ;;
esac
