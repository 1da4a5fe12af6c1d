#!/bin/sh
# style.sh - what the eye should not have to check. Run from the root of the repository: sh tests/style.sh
# Needs only awk, grep, sed. Each check prints the faults it finds as FILE:LINE: FAULT.
. tests/check.sh

headers=oscar.h
[ ! -f oscar_cuda.h ] || headers="oscar.h oscar_cuda.h"
places=$(ls -d $headers Makefile README.md .ci docs examples tests bench 2>/dev/null)
code=$(find $places -type f \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' \))
scripts=$(find $places -type f \( -name Makefile -o -name run -o -name '*.sh' -o -name '*.py' \))
texts=$(find $places -type f -name '*.md')

# -- text ------------------------------------------------------------------------------------------------------------

long_lines()
{
    awk 'length($0) > 120 { print FILENAME ":" FNR ": " length($0) " columns, at most 120" }' $code $scripts
}
not_ascii() { LC_ALL=C grep -n '[^ -~	]' $code $scripts || true; }
trailing_blanks() { grep -nE '[ 	]$' $code $scripts $texts LICENSE .gitignore || true; }
tabs() { grep -n '	' $code || true; }
carriage_returns() { grep -l "$(printf '\r')" $code $scripts $texts || true; }
left_undone() { grep -nE '\b(TO[D]O|FIX[M]E|XX[X])\b' $code $scripts $texts || true; }
machine_paths() { grep -nE '/(wor[k]|roo[t]|hom[e])/' $code $scripts $texts || true; }

check_empty "lines are at most 120 columns" long_lines
check_empty "code and scripts are ASCII" not_ascii
check_empty "no trailing blanks" trailing_blanks
check_empty "no tabs in C files" tabs
check_empty "lines end in a line feed alone" carriage_returns
check_empty "nothing is marked as left undone" left_undone
check_empty "no paths of one machine" machine_paths

# -- sections --------------------------------------------------------------------------------------------------------

# The contents are the lines `   3.7  TITLE` of the manual, the banners `== 3.7 TITLE`, also inside comments. A banner
# may go on after its title with `: ...` or ` (...`. Both lists must have the same numbers and titles in the same order.
banners()
{
    awk '
        /^ +[0-9]+\.[0-9]+ +[A-Z]/ && !implementation {
            number = $1; sub(/^ *[0-9.]+ +/, ""); sub(/ +$/, "")
            want[++wants] = number " " $0; where[wants] = FNR
        }
        /^(\/\* | *)== [0-9]+\.[0-9]+ / {
            sub(/^(\/\* | *)== /, ""); sub(/ ==( \*\/)? *$/, "")
            have[++haves] = $0; line[haves] = FNR
        }
        /^ *== [23] (API|KERNELS)/ { implementation = 1 }
        END {
            if (!wants) print FILENAME ":1: no table of contents"
            for (i = 1; i <= (wants > haves ? wants : haves); i++) {
                rest = substr(have[i], length(want[i]) + 1)
                same = i <= wants && i <= haves && index(have[i], want[i]) == 1 && rest ~ /^(: .*| \(.*)?$/
                if (!same) {
                    print FILENAME ":" where[i] ": contents \"" want[i] "\", line " line[i] ": banner \"" have[i] "\""
                    exit
                }
            }
        }' "$1"
}

for header in $headers; do check_empty "$header: banners match the contents" banners "$header"; done

# -- comments --------------------------------------------------------------------------------------------------------

# A declaration is documented by a comment in its own paragraph (lines without a blank line between) above it, or by one
# at the end of the declaration.
undocumented()
{
    awk '
        /^ *== [34] IMPLEMENTATION/ { exit }
        /^$/ { comment = 0 }
        /^ *\/\*/ { comment = 1 }
        /^OSCAR_API/ { declaration = $0; start = FNR; pending = 1 }
        pending && /\/\*/ { comment_after = 1 }
        pending && /;/ {
            if (!comment && !comment_after) print FILENAME ":" start ": no comment above: " declaration
            pending = comment_after = 0
        }' "$1"
}

# Functions: from the first line of the signature to the closing brace, both in column 1. Those named test_... are lists
# of cases and may be long.
long_functions()
{
    awk '
        FNR == 1 { paragraph = ""; signature = 0; body = 0; in_comment = 0 }
        body && /^}/ {
            if (FNR - signature + 1 > 60 && paragraph !~ /long:/ && name !~ / test_[a-z0-9_]+\(/)
                print FILENAME ":" signature ": " FNR - signature + 1 " lines, no \"long:\" with a reason above: " name
            body = 0; paragraph = ""; signature = 0; next
        }
        body { next }
        /^{/ && signature { body = 1; next }
        /^$/ || /^}/ || /^#/ { paragraph = ""; signature = 0; next }
        {
            paragraph = paragraph "\n" $0
            comment = in_comment || /^ *\/[*\/]/
            if (/\/\*/) in_comment = 1
            if (/\*\//) in_comment = 0
            if (!comment && !signature) { signature = FNR; name = $0 }
            if (!comment && /[;}] *(\/\*.*)?$/) { paragraph = ""; signature = 0 }
        }' $code
}

# Private names belong to the implementation: no word of them in the manual, in comments of the API or in other texts.
private_names()
{
    for header in $headers; do
        awk '/^#endif .*OSCAR(_CUDA)?_H / { exit }
             /^ *#/ || /^OSCAR__|OSCAR__[A-Z]+\(OSCAR|OSCAR_RESULTS\(OSCAR__/ { next }
             /OSCAR__|oscar__/ { print FILENAME ":" FNR ": private name: " $0 }' "$header"
    done
    grep -nE 'OSCAR__|oscar__' README.md examples/*.c examples/*.md 2>/dev/null || true
}

# Macros that a user may define: those a directive tests.
options_without_text()
{
    for header in $headers; do
        macros=$(grep -E '^ *# *(if|ifdef|ifndef|elif)' "$header" | grep -oE '\bOSCAR_[A-Z0-9][A-Z0-9_]*' | sort -u |
                 grep -vE '^OSCAR(_CUDA)?_H$')
        for macro in $macros; do
            awk -v macro="$macro" '/^ *== 2 API/ { exit !found } index($0, macro) { found = 1 }
                                   END { exit !found }' "$header" ||
                echo "$header:1: the manual does not name the option $macro"
        done
    done
}

for header in $headers; do check_empty "$header: every declaration has a comment" undocumented "$header"; done
check_empty "functions over 60 lines give a reason" long_functions
check_empty "private names are not documented" private_names
check_empty "every option is in the manual" options_without_text

# -- what runs where -------------------------------------------------------------------------------------------------

# The first page names every instruction set that oscar_isa_name knows, says that plain code serves all machines, and
# what there is for a GPU.
architectures()
{
    names=$(awk '/oscar_isa_name\(oscar_isa isa\)$/ { on = 1 } on && /names\[\]/ { print; exit }' oscar.h |
            grep -o '"[^"]*"' | tr -d '"' | grep -v '^auto$')
    [ -n "$names" ] || echo "oscar.h:1: no list of instruction sets found"
    for name in $names; do grep -q -- "$name" README.md || echo "README.md:1: does not name $name"; done
    grep -q 'scalar C code runs everywhere' README.md || echo "README.md:1: does not say that plain code serves all"
    grep -q 'CUDA' README.md || echo "README.md:1: does not say what there is for a GPU"
}

check_empty "C9.3 the README names every instruction set" architectures

# Faults that users of such software met, by number: each stands in the name of a test. The last one of each group.
cases_untested()
{
    for last in 1.7 2.9 3.8 4.23 5.9 6.16 7.7 8.2 9.3; do
        for number in $(seq "${last#*.}"); do
            grep -rqE "C${last%.*}\.$number([^0-9]|\$)" tests || echo "tests: no test of case C${last%.*}.$number"
        done
    done
}

check_empty "each known case has a test" cases_untested

# -- lists kept twice ------------------------------------------------------------------------------------------------

functions() { awk '/^ *== [34] IMPLEMENTATION/ { exit }
                   /^OSCAR_API/ && match($0, /oscar_[a-z0-9_]+\(/) { print substr($0, RSTART, RLENGTH - 1) }' "$1"; }

# The renaming block has one line `#define NAME OSCAR__NAME(NAME)` for each function of the API, in its order.
namespace_list()
{
    for header in $headers; do
        functions $header | sed 's/.*/#define & OSCAR__NAME(&)/' >"$check_log.want"
        grep -E '^#define oscar_[a-z0-9_]+ OSCAR__NAME\(' $header >"$check_log.have"
        diff "$check_log.want" "$check_log.have" || true
    done
    rm -f "$check_log.want" "$check_log.have"
}

# The license at the end of a header is the text of LICENSE.
license_text()
{
    for header in $headers; do
        awk '/ALTERNATIVE A/ { on = 1 } on' "$header" | sed -e 's/^   //' -e 's/ \*\/$//' >"$check_log.have"
        awk '/ALTERNATIVE A/ { on = 1 } on' LICENSE | diff - "$check_log.have" || true
    done
    rm -f "$check_log.have"
}

check_empty "OSCAR_NAMESPACE renames every function" namespace_list
check_empty "the headers end with LICENSE" license_text

check_end style
