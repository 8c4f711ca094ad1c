#!/usr/bin/env bash
# The chain of scripts/submit.sh with the real programs, on a Slurm that the test starts: it ends VALID; one job alone reruns
# just its stage; a candidate that fails stops the chain.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 300
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
unset OMP_NUM_THREADS H3_CLEAN_BUILD
work=$(mktemp -d)
cleanup() {
    tests/tools/slurm_testbed.sh down --dir "$work/slurm" >&2
    rm -rf "$work"
}
trap cleanup EXIT
mkdir "$work/slurm"
environment=$(SLURM_TESTBED_DIR='' tests/tools/slurm_testbed.sh up --nodes 1 --dir "$work/slurm" 2>&2)
check 'Slurm starts' eval "$environment"

jobs_of() { awk '$2 ~ /^[0-9]+$/ {print $2} $3 ~ /^[0-9]+$/ {print $3}' | sort -nu; }
field() { scontrol -o show job "$1" | sed -nE "s/.* $2=([^ ]+).*/\1/p"; } # field JOB NAME
idle() { # until no job is queued or running
    local i
    for ((i = 0; i < 600; i++)); do
        [ -n "$(squeue -h -t PD,R,CG)" ] || return 0
        sleep 0.2
    done
    squeue >&2
    return 1
}
passed() { sed -n 's/^ *"verdict": "\(.*\)",$/\1/p' "$1/stages/$2/stage.json" | head -n 1; }
said() { cat "$1/logs/h3_$2"-[0-9]*.log; } # said RUN STAGE

# --- the whole chain ---
run=$work/run
out=$(scripts/submit.sh --plan plans/smoke.json --run "$run")
is 'the chain is submitted' "$? $(jobs_of <<<"$out" | wc -l)" '0 6'
check 'and ends' idle
for job in $(jobs_of <<<"$out"); do is "job $job has completed" "$(field "$job" JobState)" COMPLETED; done
for stage in $chain_stages; do like "$stage has passed" "$(passed "$run" "$stage")" '^(passed|VALID)$'; done
is 'the gate says VALID' "$(passed "$run" candidate_gate)" VALID
like 'and so does its log' "$(said "$run" candidate_gate)" '^VALID +[0-9]+ checks and [0-9]+ bounds hold$'
like 'on a candidate from a clean export' "$(said "$run" candidate_gate)" \
    '^build +candidate from a clean export of commit|^build +no git checkout here'
like 'with two ranks' "$(said "$run" reference_pass)" '^stage 1 +reference pass +2 ranks, 2 blocks'
out=$(scripts/submit.sh --status --run "$run")
is 'status: six done' "$(grep -cE '^[a-z ]+ [0-9]+ +done ' <<<"$out")" 6
unlike 'status: nothing is next' "$out" '^next'

# --- one job alone ---
identity() { # of everything that is not the gate's: inode, time of change, bytes
    (cd "$run" && find . -type f ! -path './stages/candidate_gate/*' ! -path './attempts/*' ! -path './logs/*' ! -path './build/*' \
        ! -name gate.json -exec stat -c '%n %i %Y %Z' {} + | LC_ALL=C sort && digests .)
}
before=$(identity) gate=$(stat -c %i "$run/gate.json") kept=$(sha256sum <"$run/gate.json")
out=$(H3_PLAN=plans/smoke.json H3_RUN=$run sbatch --parsable --wait --output="$run/logs/%x-%j.log" jobs/candidate_gate.sbatch)
is 'sbatch of one job file passes' "$?" 0
check 'it was a new gate' [ "$(stat -c %i "$run/gate.json")" != "$gate" ]
is 'with the same bytes' "$(sha256sum <"$run/gate.json")" "$kept"
is 'its earlier attempt is kept, and no other' "$(cd "$run/attempts" && find . -type f | LC_ALL=C sort | tr '\n' ' ')" \
    './candidate_gate/1/gate.json ./candidate_gate/1/site.json ./candidate_gate/1/stage.json '
like 'and this is the second' "$(cat "$run/stages/candidate_gate/site.json")" '"attempt": 2,'
after=$(identity)
is 'no other stage was touched' "$(grep -v ' \./attempts/' <<<"$after")" "$before"
out=$(scripts/submit.sh --status --run "$run")
is 'status: still six done' "$(grep -cE '^[a-z ]+ [0-9]+ +done ' <<<"$out")" 6
PLAN=plans/smoke.json
check 'the stages behind it accept it: nothing is stale' stage 2 compare "$run"

# --- a candidate that is not there ---
mkdir "$work/plans" && cp generation-contract.json "$work"
sed 's/libh3_candidate_[^.]*\.so/libh3_nowhere.so/' plans/smoke.json >"$work/plans/nowhere.json"
refuse 'its plan is another one' cmp plans/smoke.json "$work/plans/nowhere.json"
run=$work/nowhere
out=$(H3_CLEAN_BUILD=0 scripts/submit.sh --plan "$work/plans/nowhere.json" --run "$run")
is 'its chain is submitted' "$?" 0
check 'and ends' idle
mapfile -t jobs < <(jobs_of <<<"$out")
for stage in reference_pass threshold_freeze generate_provider; do is "$stage has passed" "$(passed "$run" $stage)" passed; done
is 'the gate has failed with exit code 1' "$(field "${jobs[3]}" JobState) $(field "${jobs[3]}" ExitCode)" 'FAILED 1:0'
is 'its verdict is kept' "$(passed "$run" candidate_gate)" INVALID
like 'its last line says what is missing' "$(said "$run" candidate_gate | tail -n 1)" 'libh3_nowhere\.so'
is 'the jobs behind it were cancelled' "$(field "${jobs[4]}" JobState) $(field "${jobs[5]}" JobState)" 'CANCELLED CANCELLED'
is 'and never ran' "$(grep -E $'\t(generate_candidate|compare)\t[0-9]+\tstarted' "$run/logs/history"
    find "$run/logs" -name 'h3_compare*' -o -name 'h3_generate_candidate*')" ''
out=$(scripts/submit.sh --status --run "$run")
like 'status: the gate has failed, and why' "$out" "^candidate gate +${jobs[3]} +FAILED 1 +[0-9:]+ .*libh3_nowhere\.so"
like 'status: the candidate waits for it' "$out" '^generate candidate +- +waiting +needs a VALID gate$'
like 'status: the comparison waits' "$out" '^compare +- +waiting +needs generate candidate$'
is 'status: the next step' "$(tail -n 1 <<<"$out")" \
    "next: put that right, then scripts/submit.sh --plan $work/plans/nowhere.json --run $run --from candidate_gate"
tap_end
