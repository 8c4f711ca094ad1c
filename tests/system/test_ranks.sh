#!/usr/bin/env bash
# Ranks under mpirun: what they exchange, and how a job ends whose ranks hang, stop, die or fail. Prints TAP.
# H3_TEST_BIN: the folder of ranks_probe.
# timeout: 600
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
export LC_ALL=C
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
probe=${H3_TEST_BIN:-${H3_BUILD:-build}/tests}/ranks_probe
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

number=0 failures=0
# check NAME COMMAND...: one test; what is known about the case is printed when it fails
check() {
    local name=$1
    shift
    number=$((number + 1))
    if "$@"; then echo "ok $number - $name"; return; fi
    echo "not ok $number - $name"
    failures=$((failures + 1))
    echo "# exit ${rc:-none}, ${seconds:-unknown} s; output:"
    sed 's/^/#   /' "${out:-/dev/null}"
}
all_of() { local test; for test in "$@"; do $test || return 1; done; }

# start CASE RANKS MODE WATCHDOG NUMBER: in the background; finish_case CASE then sets rc, out and seconds (from the fault on)
declare -A pid_of
start() {
    local name=$1 ranks=$2
    shift 2
    {
        # of its own: mpirun fails when another one that ends removes the folder that both share
        export OMPI_MCA_orte_tmpdir_base=$folder/$name.mpi
        timeout -k 2 100 mpirun -q --oversubscribe -n "$ranks" "$probe" "$@" >"$folder/$name" 2>&1
        echo "$? $EPOCHREALTIME" >"$folder/$name.end"
    } &
    pid_of[$name]=$!
}
finish_case() {
    local end fault
    wait "${pid_of[$1]}"
    out=$folder/$1
    read -r rc end <"$out.end"
    read -r _ fault_pid fault < <(grep '^fault ' "$out" || echo "fault 0 0")
    sed -i '/^fault /d' "$out"
    seconds=$(awk -v a="$fault" -v b="$end" 'BEGIN { printf "%.2f", b - a }')
}
run() { start "$@"; finish_case "$1"; }

quick() { awk -v s="$seconds" -v l="$1" 'BEGIN { exit !(s <= l) }'; }
# A zombie counts as gone: where process 1 does not reap, killed ranks stay zombies.
gone() { [ "$fault_pid" != 0 ] && ! grep -q '^State:[[:space:]]*[^Z[:space:]]' "/proc/$fault_pid/status" 2>/dev/null; }
# ended RC SECONDS TEXT: exit code, time and line as they should be, and the faulty process is no more
code() { [ "$rc" = "$1" ]; }
nonzero() { [ "$rc" != 0 ]; }
ended() { [ "$rc" = "$1" ] && quick "$2" && grep -q -- "$3" "$out" && gone; }
quiet_end() { [ "$rc" = "$1" ] && [ "$(cat "$out")" = "$2" ]; }

# --- what works -------------------------------------------------------------------------------------------------------

for ranks in 1 2 3 4 8; do
    run "exchange$ranks" "$ranks" exchange 10 0
    check "$ranks ranks: chain there and back, crossing messages, broadcast, gather, agree, wrong sizes" \
        quiet_end 0 "only rank 0 says this"
done

for ranks in 1 2 3 4 8; do
    run "parting$ranks" "$ranks" parting 10 0
    check "$ranks ranks: any one stops at any point, all part, and the lines are as new" quiet_end 0 ''
done

for ranks in 1 3; do
    run "meter$ranks" "$ranks" meter 10 0
    check "$ranks ranks: work, waiting and hand-offs are told apart" quiet_end 0 ''
done

alone() {
    out=$folder/alone
    env -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_ALLOW_RUN_AS_ROOT_CONFIRM timeout 20 "$probe" "$@" >"$out" 2>&1
    rc=$?
    sed -i '/^fault /d' "$out"
}
alone exchange 10 0
check "without mpirun: the same with one rank" quiet_end 0 "only rank 0 says this"
alone hang 0.5 0
check "without mpirun: a hung program ends with exit code 4" quiet_end 4 \
    "ranks_probe: rank 0 silent for 0.5 s in backward attention (block 31)"
alone abort 5 0
check "without mpirun: abort prints one line and keeps its exit code" quiet_end 3 "h3_probe: block 31 is damaged; make it again"
alone finalize 1 0
check "without mpirun: a hung MPI_Finalize ends with exit code 4" quiet_end 4 \
    "ranks_probe: rank 0 cannot end: MPI_Finalize waits for 1 s; a rank is lost"
alone exchange 0 0
check "a watchdog of 0 s is refused" quiet_end 2 "ranks_probe: a watchdog of 0 seconds; it must be 0.1 to 1000000"

run toomany 4 range 5 3
check "more ranks than blocks are refused" quiet_end 2 "ranks_probe: rank 0: 4 ranks are too many for 3 blocks; start at most 3"
run enough 4 range 5 4
check "as many ranks as blocks are not" quiet_end 0 ""

start patience 4 patience 1 0
start overlap 2 overlap 10 0
OMPI_MCA_btl_vader_single_copy_mechanism=none start overlap_copy 2 overlap 10 0
finish_case patience
check "long waits in receive, collective and finish are no silence" quiet_end 0 ""
finish_case overlap
check "a large message arrives while its sender computes" code 0
finish_case overlap_copy
check "the same where the receiver cannot read the sender's memory" code 0

# --- ranks that hang, stop, die, fail -----------------------------------------------------------------------------------

run hang 4 hang 2 2
check "a rank in an endless loop ends the job within its watchdog" ended 4 5 \
    "^ranks_probe: rank 2 silent for 2 s in backward attention (block 31)$"

lost() { ended 4 5 "^ranks_probe: rank $1 is lost: no heartbeat for 2 s; last known place: backward attention (block 31)$"; }
start halt4 4 halt 2 2
start halt3 3 halt 2 0
start halt2 2 halt 2 1
start patient4 4 halt 30 1
finish_case halt4
check "a stopped process of 4 ends the job" lost 2
check "and is complained about once" [ "$(wc -l <"$out")" = 1 ]
finish_case halt3
check "a stopped process of 3, the first, ends the job" lost 0
finish_case halt2
check "a stopped process of 2 ends the job" lost 1

# The watchdog is what ended them: with a longer one a job with a stopped rank is still there, until that rank goes on.
out=$folder/patient4
check "a stopped process within the watchdog's time does not" [ ! -e "$out.end" ]
kill -CONT "$(awk '/^fault / { print $2 }' "$out")"
finish_case patient4
check "and the job ends well when it goes on" quiet_end 0 ""

start kill 4 kill 20 1
start leave 3 leave 20 1
start abort 4 abort 20 3
start fail 4 fail 20 1
finish_case kill
check "a killed rank ends the job at once" all_of "code 137" "quick 4" gone
finish_case leave
check "a rank that exits on its own ends the job at once, and not with 0" all_of nonzero "quick 4" gone
finish_case abort
check "abort ends the job with its status and one line" quiet_end 3 "h3_probe: rank 3: block 31 is damaged; make it again"
finish_case fail
check "a rank on which MPI fails ends the job when it finishes" \
    ended 4 4 "^ranks_probe: MPI failed on rank 1 in agree with all ranks: MPI_ERR_OTHER.*; start the stage again$"

# --- signals --------------------------------------------------------------------------------------------------------------

# pids CASE COUNT: waits for the ranks' process ids
pids() {
    for _ in $(seq 100); do
        [ "$(grep -c '^pid ' "$folder/$1")" = "$2" ] && break
        sleep 0.1
    done
    sed -n 's/^pid //p' "$folder/$1"
}
stopped_by() {
    [ "$rc" = 75 ] && grep -q "^ranks_probe: stopped by signal $1 (.*) between two steps; start it again to go on$" "$out"
}

start usr1 4 steps 10 20
start term 2 steps 10 20
start unsignalled 2 steps 10 1
last=$(pids usr1 4 | tail -n 1)
kill -USR1 "$last"
first=$(pids term 2 | head -n 1)
kill -TERM "$first"
finish_case usr1
check "SIGUSR1 to one rank stops all between steps with exit code 75" stopped_by 10
finish_case term
check "so does SIGTERM" stopped_by 15
finish_case unsignalled
check "no signal, no stop" code 0
start suspended 3 steps 1 3
suspended=$(pids suspended 3)
# shellcheck disable=SC2086  # three process ids
kill -STOP $suspended
sleep 2
# shellcheck disable=SC2086
kill -CONT $suspended
finish_case suspended
check "a job that was suspended as a whole, longer than its watchdog, goes on" code 0

echo "1..$number"
[ "$failures" = 0 ]
