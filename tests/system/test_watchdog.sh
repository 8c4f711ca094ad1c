#!/usr/bin/env bash
# A rank of a real stage that hangs or is killed: the job ends in the watchdog's time with exit code 4 and the rank's name,
# nothing half-written is accepted, and running the stage again gives what an undisturbed run gives.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 400
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
cleanup() {
    local log
    # a rank that a broken watchdog leaves behind
    for log in "$work"/*.log; do
        awk '$1 == "asleep" { print $2 }' "$log" 2>/dev/null | xargs -r kill -9 2>/dev/null
    done
    rm -rf "$work"
}
trap cleanup EXIT
check 'there is a candidate that the gate accepts' clean_candidate "$work/clean"
H3_LIB=$H3_LIB:$chain_build/tests
small_plan "$work" libsleeper.so
PLAN=$work/plan.json
limit=3
case $chain_build in */sanitize) limit=10 ;; esac # under a sanitizer even healthy ranks are silent for a while

moment() { # moment RUN: waits until a rank of that run is asleep
    local i
    for ((i = 0; i < 1200; i++)); do
        grep -q '^asleep ' "$1.log" 2>/dev/null && break
        sleep 0.05
    done
    asleep=$(sed -n 's/^asleep //p' "$1.log") from=$EPOCHREALTIME
}
since() { seconds=$(awk -v a="$from" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'); }
quick() { awk -v s="$seconds" -v l="$1" 'BEGIN { exit !(s <= l) }'; }
# A zombie counts as gone: where process 1 does not reap, killed ranks stay zombies.
gone() { [ -n "$asleep" ] && ! grep -q '^State:[[:space:]]*[^Z[:space:]]' "/proc/$asleep/status" 2>/dev/null; }

hang() { # hang SLEEP RANKS STAGE RUN: the stage with a rank that hangs
    local pid
    : >"$4.log"
    H3_SLEEP=$1 stage "$2" "$3" "$4" --watchdog $limit &
    pid=$!
    moment "$4"
    wait $pid
    code=$?
    since
    said=$(grep -v '^asleep ' "$4.log")
}
hangs() { # hangs NAME SLEEP RANKS STAGE RUN PATTERN
    local name=$1 pattern=$6
    shift
    hang "$1" "$2" "$3" "$4"
    is "$name: exit 4" "$code" 4
    like "$name: one line with the rank" "$(wc -l <<<"$said") $said" "^1 h3_[a-z_]+: $pattern\$"
    check "$name: within the watchdog's $limit s ($seconds s)" quick $((limit + 5))
    check "$name: the rank is gone" gone
}
left() { find "$1" -name '.tmp-*' -o -name '*.new*'; }

# --- undisturbed ---
good=$work/good
check 'the candidate that can sleep passes when it does not' chain 2 "$good"
no_leak_search

# --- the candidate hangs ---
run=$work/run
for early in reference_pass threshold_freeze generate_provider; do check "$early passes" stage 2 $early "$run"; done
hangs 'block 0 on the second rank' 1 2 candidate_gate "$run" "rank 1 silent for $limit s in .*attention.*"
check 'the gate has left no verdict' [ ! -e "$run/stages/candidate_gate/stage.json" ]
stage 2 generate_candidate "$run"
is 'what needs it refuses' "$?" 3
like 'and says what to run' "$(tail -n 1 "$run.log")" 'candidate_gate has not finished .*run h3_candidate_gate'
hangs 'all blocks on the last of four ranks' 3 4 candidate_gate "$run" "rank 3 silent for $limit s in .*attention \(block 6\)"
check 'the gate passes when it is run again' stage 2 candidate_gate "$run"

hangs 'generation on the first rank, in the second evaluation' 0:10 2 generate_candidate "$run" "rank 0 silent for $limit s in .*attention.*"
check 'the generation has left no verdict' [ ! -e "$run/stages/generate_candidate/stage.json" ]
stage 2 compare "$run"
is 'what needs it refuses' "$?" 3
like 'and says what to run' "$(tail -n 1 "$run.log")" 'generate_candidate has not finished .*run h3_generate --side candidate'
check 'the generation passes when it is run again' stage 2 generate_candidate "$run"
check 'and so does the comparison' stage 2 compare "$run"
check 'the run has the bytes of an undisturbed one' same_run "$good" "$run"
is 'and no leftovers' "$(left "$run")" ''

# --- the provider hangs: half a reference is on disk ---
mkdir "$work/provider"
small_plan "$work/provider"
PLAN=$work/provider/plan.json
sed -i 's/"provider": "libh3_provider_cpu.so"/"provider": "libsleeper.so"/' "$PLAN"
export H3_SLEEPER=provider
check 'the provider that can sleep passes when it does not' stage 2 reference_pass "$work/reference"
run=$work/half
hangs 'the reference pass, late in the second rank' 1:20 2 reference_pass "$run" "rank 1 silent for $limit s in .*attention.*"
check 'some of the reference is on disk' [ -e "$run/data/reference/s78/fp32/block-000.h5" ]
check 'but no manifest' [ ! -e "$run/reference-manifest.json" ]
stage 2 threshold_freeze "$run"
is 'what needs it refuses' "$?" 3
check 'the reference pass passes when it is run again' stage 2 reference_pass "$run"
check 'with the bytes of an undisturbed one' same_run "$work/reference" "$run"
is 'and no leftovers' "$(left "$run")" ''

# --- a rank is killed, in a job ---
job() { # job SLEEP RANKS STAGE RUN: the stage's job, and a kill -9 for the rank that sleeps
    local pid
    : >"$4.log"
    H3_SLEEP=$1 H3_RANKS=$2 H3_PLAN=$PLAN H3_RUN=$4 H3_CLEAN_BUILD=0 H3_ARGS='--watchdog 100' bash "jobs/$3.sbatch" >>"$4.log" 2>&1 &
    pid=$!
    moment "$4"
    kill -9 "$asleep"
    wait $pid
    code=$?
    since
}
killed() { # killed NAME SLEEP RANKS STAGE RUN RANK
    job "$2" "$3" "$4" "$5"
    is "$1: exit 4" "$code" 4
    like "$1: the rank is named" "$(cat "$5.log")" "rank $6 .*signal 9"
    like "$1: the last line says what to do" "$(tail -n 1 "$5.log")" "^h3_$4: a rank ended by itself .*then run the stage again\$"
    check "$1: at once ($seconds s)" quick 8
    check "$1: no verdict is left" [ ! -e "$5/stages/$4/stage.json" ]
}
run=$work/killed
killed 'the first rank in the reference pass' 0:20 2 reference_pass "$run" 0
stage 2 threshold_freeze "$run"
is 'what needs it refuses' "$?" 3
check 'the reference pass passes when it is run again' stage 2 reference_pass "$run"
check 'with the bytes of an undisturbed one' same_run "$work/reference" "$run"
unset H3_SLEEPER

run=$work/gate
PLAN=$work/plan.json
for early in reference_pass threshold_freeze generate_provider; do stage 2 $early "$run"; done
killed 'the second rank in the gate' 1 2 candidate_gate "$run" 1
for late in candidate_gate generate_candidate compare; do check "$late passes after it" stage 2 $late "$run"; done
check 'with the bytes of an undisturbed run' same_run "$good" "$run"
is 'and no leftovers' "$(left "$run")" ''
tap_end
