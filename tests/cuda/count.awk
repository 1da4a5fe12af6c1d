# count.awk - reads ptxas's report and the SASS of a layer's kernels (test_attend cubin; nvdisasm -c), and prints one
# line: registers and spills of decode, instructions of a turn of its main loop, which is a block of 64 tokens of a
# KV head, and these by class. awk -f count.awk REPORT SASS
#
# The loop is the shortest one that copies from global memory and has integer products (jumps back from code behind an
# EXIT are none). A turn takes the way of a block
# in the middle of a long history: what is skipped unless a maximum moves is left out, copies are not.

function opcode(text)
{
    sub(/^@[!UPT0-9]+ +/, "", text)
    sub(/ .*/, "", text)
    return text
}

function class_of(op)
{
    if (op ~ /^IMMA/) return "IMMA"
    if (op ~ /^(LDS|LDSM|STS)/) return "LDS"
    if (op ~ /^(LDG|LDGSTS|STG)/) return "LDG"
    if (op ~ /^(LDL|STL)/) return "local"
    if (op ~ /^(FADD|FMUL|FFMA|FMNMX|HADD2|HFMA2|HMUL2|FSEL|FSETP|F2FP|FSET)/) return "float"
    if (op ~ /^(SHFL|REDUX|CREDUX|VOTE|VOTEU)/) return "SHFL"
    if (op ~ /^MUFU/) return "MUFU"
    if (op ~ /^(I2F|F2I|F2F|I2FP|F2IP)/) return "convert"
    if (op ~ /^(BAR|WARPSYNC|BSSY|BSYNC|DEPBAR|LDGDEPBAR|NOP|BMOV|BREAK|YIELD|ENDCOLLECTIVE|ERRBAR|MEMBAR)/) return "sync"
    if (op ~ /^(BRA|CALL|RET|JMP|BRX|EXIT)/) return "branch"
    return "integer"
}

function target(text)
{
    if (opcode(text) !~ /^BRA/ || !match(text, /\.L_x_[0-9]+/)) return 0
    return label[substr(text, RSTART, RLENGTH)]
}

function has(from, to, what,    i)
{
    for (i = from; i <= to; i++) if (code[i] ~ what) return 1
    return 0
}

function find_loop(    i, j, to, products)
{
    best = 0
    for (i = 1; i <= count; i++) {
        to = target(code[i])
        if (!to || to > i || (best && i - to >= end - best)) continue
        products = 0
        for (j = to; j <= i; j++) if (code[j] ~ /IMMA/) products++
        if (products < 8 || !has(to, i, "LDG") || has(to, i, "^(@[!UPT0-9]+ +)?EXIT")) continue
        best = to
        end = i
    }
}

function walk(    i, to, text)
{
    for (i = best; i <= end; i++) {
        text = code[i]
        total++
        by[class_of(opcode(text))]++
        to = target(text)
        if (to <= i || to > end || text ~ /BRA\.DIV/) continue
        if (text ~ /BRA\.CONV/ || (text !~ /^@/ && text !~ /BRA\.U !?UP/)) i = to - 1
        else if (!has(i + 1, to - 1, "LDG|IMMA|HMMA")) i = to - 1
    }
}

{ file = FILENAME == ARGV[1] ? 1 : 2 }
file == 1 && /Compiling entry function/ { decode = /oscar_cu_decode/ }
file == 1 && /spill stores/ {
    for (i = 1; i < NF; i++) if ($(i + 1) == "bytes" && $i + 0 > worst) worst = $i + 0
    if (decode) for (i = 1; i < NF; i++) if ($(i + 1) == "bytes" && $i + 0 > spilled) spilled = $i + 0
}
file == 1 && decode && /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1) }
file == 2 && /^\.section/ { inside = 0 }
file == 2 && /^\.text\./ { inside = /^\.text\.oscar_cu_decode:/ }
file == 2 && inside && /^\.L_x_[0-9]+:/ { sub(/:.*/, ""); label[$0] = count + 1 }
file == 2 && inside && /^ +\/\*[0-9a-f]+\*\/ +[^\/ ]/ {
    sub(/^ +\/\*[0-9a-f]+\*\/ +/, "")
    sub(/ *;.*/, "")
    code[++count] = $0
}
END {
    find_loop()
    if (!best) { print "no loop with integer products"; exit 1 }
    walk()
    printf "registers %d spills %d worst %d loop %d", registers, spilled, worst, total
    n = split("IMMA LDS LDG float integer SHFL MUFU convert sync branch local", names, " ")
    for (i = 1; i <= n; i++) printf " %s %d", names[i], by[names[i]]
    print ""
    if (show) for (i = best; i <= end; i++) print code[i]
}
