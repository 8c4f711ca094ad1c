#!/usr/bin/env bash
# The test runner itself: programs that fail, crash, hang, say nothing or skip are counted as tests/run promises.
set -u
. tests/tools/tap.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

program() { # program NAME BODY: makes a test program
    printf '#!/bin/bash\n%s\n' "$2" >"$folder/$1"
    chmod +x "$folder/$1"
}
# run NAME...: sets out, code and last
run() {
    out=$(H3_TEST_LOG=$folder/log tests/run --timeout "${limit:-20}" "${@/#/$folder/}" 2>&1)
    code=$?
    last=$(tail -n 1 <<<"$out")
}

program good 'echo "1..2"; echo "ok 1 - one"; echo "ok 2 - two"'
run good
is 'a passing program passes' "$code $last" '0 2 passed, 0 failed, 0 skipped'
like 'and has one line with its name and time' "$out" '^good +2 passed +[0-9.]+ s$'

program failing 'echo "ok 1 - one"; echo "not ok 2 - two is off"; echo "ok 3 - three"; exit 1'
run good failing
is 'a failing test is counted beside the others' "$code $last" '1 4 passed, 1 failed, 0 skipped'
like 'its name is printed' "$out" '^    not ok  two is off$'
like 'and where the log is' "$out" "^    log     $folder/log/failing.log\$"

program careless 'echo "not ok 1 - wrong"; exit 0'
run careless
is 'exit 0 does not hide a failing test' "$code $last" '1 0 passed, 1 failed, 0 skipped'

program crashing 'echo "ok 1 - one"; kill -SEGV $$'
run crashing
is 'a crash is a failure' "$code $last" '1 1 passed, 1 failed, 0 skipped'
like 'and named as one' "$out" 'exit 139 \(signal 11\) without a failing test'

program killed 'echo "ok 1 - one"; kill -KILL $$'
run killed
is 'so is a kill from outside' "$code $last" '1 1 passed, 1 failed, 0 skipped'

program leaving 'echo "ok 1 - one"; exit 3'
run leaving
is 'a non-zero exit without a failing test is a failure' "$code $last" '1 1 passed, 1 failed, 0 skipped'

program silent 'exit 0'
run silent
is 'no test at all is a failure' "$code $last" '1 0 passed, 1 failed, 0 skipped'

program short 'echo "1..3"; echo "ok 1 - one"; exit 0'
run short
is 'fewer tests than planned are a failure' "$code $last" '1 1 passed, 1 failed, 0 skipped'

program hanging 'echo "ok 1 - one"; sleep 300'
limit=1 run good hanging
is 'a program that hangs is ended and fails' "$code $last" '1 3 passed, 1 failed, 0 skipped'
like 'and the reason is given' "$out" 'still running after 1 s'

# a process that outlives its program and holds its output must not hold the runner
program leaking 'echo "ok 1 - one"; setsid sleep 30 & sleep 300'
limit=1
SECONDS=0
run leaking
is 'one that leaves a process behind too' "$code $last" '1 1 passed, 1 failed, 0 skipped'
check 'without waiting for that process' [ $SECONDS -lt 15 ]
unset limit

program skipping 'echo "ok 1 - one"; echo "ok 2 - on a device # SKIP no GPU here"'
run skipping
is 'a skip for want of a GPU is a skip' "$code $last" '0 1 passed, 0 failed, 1 skipped'
like 'and listed by name' "$out" '^skipped  skipping: on a device \(no GPU here\)$'

program lazy 'echo "ok 1 - one"; echo "ok 2 - two # SKIP not today"'
run lazy
is 'any other skip is a failure' "$code $last" '1 1 passed, 1 failed, 0 skipped'

program bare 'echo "not ok 1 # SKIP test_something"'
run bare
is 'so is one without a reason' "$code $last" '1 0 passed, 1 failed, 0 skipped'

program all_skipped 'echo "ok 1 - one # SKIP no GPU"'
run all_skipped
is 'a run in which nothing passed fails' "$code $last" '1 0 passed, 0 failed, 1 skipped'

run missing
is 'a program that is not there is a failure' "$code $last" '1 0 passed, 1 failed, 0 skipped'

out=$(H3_TEST_LOG=$folder/log tests/run --match 'nothing_has_this_name' 2>&1)
is 'a pattern that picks nothing fails' "$? $(tail -n 1 <<<"$out")" '1 0 passed, 0 failed, 0 skipped'
out=$(tests/run --match 'test_runne?' --list)
is 'a pattern picks by name' "$out" 'tests/system/test_runner.sh'

program slow_a 'sleep 1; echo "ok 1 - a"'
program slow_b 'sleep 1; echo "ok 1 - b"'
start=$EPOCHREALTIME
run slow_a slow_b
took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print (b - a < 1.9) }')
is 'two run side by side' "$code $last $took" '0 2 passed, 0 failed, 0 skipped 1'

# shellcheck disable=SC2016
program environment 'v=${OMPI_ALLOW_RUN_AS_ROOT}${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM}${OMPI_MCA_rmaps_base_oversubscribe}
[ "$v" = 111 ] && [ "$OMPI_MCA_btl" = self,vader,tcp ] && [ -n "$H3_LIB" ] && [ -n "$H3_BIN" ] && [ -n "$H3_BUILD" ] && echo "ok 1 - set"'
run environment
is 'ranks can start in a test' "$code $last" '0 1 passed, 0 failed, 0 skipped'

if command -v gcc >/dev/null; then
    cat >"$folder/unit.c" <<'C'
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
static void good(void **state) { (void)state; assert_int_equal(1, 1); }
static void bad(void **state) { (void)state; assert_int_equal(1, 2); }
static void skipped(void **state) { (void)state; skip(); }
static void crash(void **state) { (void)state; volatile int *nowhere = 0; *nowhere = 1; }
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(good), cmocka_unit_test(bad), cmocka_unit_test(skipped), cmocka_unit_test(crash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
C
    check 'a cmocka program compiles' gcc "$folder/unit.c" -lcmocka -o "$folder/unit"
    run unit
    is 'cmocka results are understood' "$code $last" '1 1 passed, 3 failed, 0 skipped'
fi
tap_end
