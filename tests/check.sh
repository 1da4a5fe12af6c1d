# check.sh - test.h for shell scripts, to be sourced. A script ends with `check_end NAME`.
#
#     check_ok "NAME" COMMAND...          passes if the command succeeds; its output is shown if it does not
#     check_fails "NAME" WORD COMMAND...  passes if the command fails and its output contains WORD
#     check_empty "NAME" COMMAND...       passes if the command prints nothing; what it prints are the faults
#     skip "NAME" "REASON"                counts as skipped, printed by name
#
# check_end prints `NAME: 12 passed, 0 failed, 1 skipped` and exits like a test program does.

passed=0 failed=0 skipped=0
check_log=$(mktemp) || exit 1
trap 'rm -f "$check_log"' EXIT

pass() { passed=$((passed + 1)); [ -z "${TEST_VERBOSE:-}" ] || printf '  %s\n' "$1"; }
fail() { failed=$((failed + 1)); printf 'FAILED %s\n' "$1"; head -n 25 "$check_log" | sed 's/^/    /'; }
skip() { skipped=$((skipped + 1)); printf 'skip %s: %s\n' "$1" "$2"; }

check_ok()
{
    check_name=$1; shift
    if "$@" >"$check_log" 2>&1; then pass "$check_name"; else fail "$check_name"; fi
}

check_fails()
{
    check_name=$1 check_word=$2; shift 2
    if "$@" >"$check_log" 2>&1; then echo "succeeded, but should not" >"$check_log"; fail "$check_name"
    elif grep -q -e "$check_word" "$check_log"; then pass "$check_name"
    else fail "$check_name (no \"$check_word\" in the output)"
    fi
}

check_empty()
{
    check_name=$1; shift
    if "$@" >"$check_log" 2>&1 && [ ! -s "$check_log" ]; then pass "$check_name"; else fail "$check_name"; fi
}

check_end()
{
    printf '%s: %s passed, %s failed, %s skipped\n' "$1" "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ] || exit 1
    exit 0
}
