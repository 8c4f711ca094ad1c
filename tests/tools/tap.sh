# Sourced by tests/system/*.sh: results as TAP lines.
#
#   ok NAME                     passed
#   not_ok NAME [TEXT...]       failed; TEXT goes to the log
#   check NAME COMMAND...       passed when COMMAND succeeds; its output goes to the log
#   refuse NAME COMMAND...      passed when COMMAND fails
#   is NAME GOT WANTED          passed when the two are the same text
#   like NAME TEXT PATTERN      passed when TEXT has a line that matches PATTERN (extended regular expression)
#   unlike NAME TEXT PATTERN
#   no_gpu NAME                 skipped for want of a GPU, the only skip that is allowed
#   tap_end                     last line of every test: says how many there were, exits 1 when one failed
# shellcheck shell=bash

tap_count=0 tap_failed=0
ok() { tap_count=$((tap_count + 1)); echo "ok $tap_count - $1"; }
not_ok() {
    tap_count=$((tap_count + 1)) tap_failed=$((tap_failed + 1))
    echo "not ok $tap_count - $1"
    shift
    [ $# = 0 ] || printf '%s\n' "$@" | sed 's/^/# /' >&2
}
check() {
    local name=$1
    shift
    if "$@" >&2; then ok "$name"; else not_ok "$name" "exit $?: $*"; fi
}
refuse() {
    local name=$1
    shift
    if "$@" >&2; then not_ok "$name" "should have failed: $*"; else ok "$name"; fi
}
is() { if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "got:    $2" "wanted: $3"; fi; }
like() { if grep -qE -- "$3" <<<"$2"; then ok "$1"; else not_ok "$1" "no line matches: $3" "in: $2"; fi; }
unlike() { if grep -qE -- "$3" <<<"$2"; then not_ok "$1" "a line matches: $3" "in: $2"; else ok "$1"; fi; }
no_gpu() { tap_count=$((tap_count + 1)); echo "ok $tap_count - $1 # SKIP no GPU"; }
tap_end() {
    echo "1..$tap_count"
    [ $tap_failed = 0 ] && [ $tap_count -gt 0 ]
    exit
}
