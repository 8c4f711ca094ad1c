#!/usr/bin/env bash
# jobs/*.sbatch and scripts/submit.sh with stage programs that do as they are told, here and on a Slurm that the test starts.
# shellcheck disable=SC2317  # functions that are called by check
set -u
. tests/tools/tap.sh
here=$PWD
project=$(mktemp -d)/project
testbed=$(mktemp -d)
cleanup() {
    "$here/tests/tools/slurm_testbed.sh" down --dir "$testbed/slurm" >&2
    rm -rf "$(dirname "$project")" "$testbed"
}
trap cleanup EXIT

# A project of its own: the real scripts, a candidate of one line, and one program that plays every stage.
mkdir -p "$project"/{bin,plans,control,kernels/candidate/cpu,include/h3}
cp -R Makefile mk scripts jobs "$project"
cp include/h3/operator.h "$project/include/h3"
cat >"$project/kernels/candidate/cpu/library.c" <<'C'
#include "h3/operator.h"
H3_EXPORT const char *revision_of_this(void);
const char *revision_of_this(void) { return "revision " H3_BUILD_REVISION; }
C
cat >"$project/bin/h3_stage" <<'PROGRAM'
#!/bin/bash
# control/STAGE: the exit code to give, or "wait": until USR1, then 75
name=$(basename "$0") stage='' run='' resume=''
stage=${name#h3_}
if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then echo "$name $* H3_LIB=${H3_LIB:-} ranks=$OMPI_COMM_WORLD_SIZE" >>calls; fi
while [ $# -gt 0 ]; do
    case $1 in --side) stage=generate_$2 ;; --run) run=$2 ;; --resume) resume=1 ;; esac
    shift
done
order=$(cat "control/$stage" 2>/dev/null || echo 0)
if [ "$order" = wait ]; then
    order=0
    if [ -z "$resume" ]; then
        trap 'order=75' USR1
        touch "waiting.$OMPI_COMM_WORLD_RANK"
        for ((i = 0; i < 300 && order == 0; i++)); do sleep 0.1; done
    fi
fi
[ "$order" != crash ] || kill -SEGV $$
if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then
    if [ "$order" = 0 ]; then
        mkdir -p "$run/stages/$stage"
        printf '{\n  "stage": "%s",\n  "verdict": "passed"\n}\n' "$stage" >"$run/stages/$stage/stage.json"
        echo "stage 9  ${stage//_/ }   all is well"
    else
        echo "$name: told to end with $order" >&2
    fi
elif [ "$order" != 0 ]; then
    sleep 5 # the first rank that leaves ends the others: let that be the one that speaks, as real ranks do
fi
exit "$order"
PROGRAM
chmod +x "$project/bin/h3_stage"
for name in reference_pass threshold_freeze generate candidate_gate compare diagnose; do ln -s h3_stage "$project/bin/h3_$name"; done
echo '{}' >"$project/plans/demo.json"
printf '/build/\n/bin/\n/lib/\n/evidence/\n/calls\n/control/\n/waiting.*\n/*.log\n' >"$project/.gitignore"
cd "$project" || exit 1
git init -q . && git add -A && git -c user.name=t -c user.email=t@t commit -q -m one
commit=$(git rev-parse --short=12 HEAD)

unset H3_RUN H3_PLAN H3_RANKS H3_DEVICE H3_LIB H3_BIN H3_CLEAN_BUILD MAKEFLAGS MAKELEVEL
chain='reference_pass threshold_freeze generate_provider candidate_gate generate_candidate compare'
demo=(--plan plans/demo.json --run evidence/demo)
programs() { cut -d' ' -f1 calls | tr '\n' ' '; }

# --- arguments ---
like 'submit.sh --help teaches' "$(scripts/submit.sh --help)" '^ +--from STAGE +start there'
usage() { # usage NAME PATTERN ARGUMENT...
    local name=$1 pattern=$2 out
    shift 2
    out=$(scripts/submit.sh "$@" 2>&1)
    is "$name: exit 2, one line" "$? $(wc -l <<<"$out")" '2 1'
    like "$name: says so" "$out" "$pattern"
}
usage 'unknown option' 'unknown option --frm' "${demo[@]}" --frm compare
usage 'unknown stage' 'no stage gate; stages: reference_pass' "${demo[@]}" --from gate
usage 'missing plan' 'no plan plans/none.json; shipped ones: plans/demo.json' --plan plans/none.json --run evidence/demo
usage 'no run' 'which run' --plan plans/demo.json
usage 'ranks' 'ranks 0 is no number' "${demo[@]}" --ranks 0
usage 'device' 'cpu or cuda' "${demo[@]}" --device gpu
usage 'value missing' '--run needs a value' --plan plans/demo.json --run
usage 'status of no run' 'no run in evidence/none' --status --run evidence/none
check 'bad arguments leave nothing behind' [ ! -e evidence ]
out=$(scripts/submit.sh "${demo[@]}" --dry-run --from candidate_gate --ranks 3 --device cuda -- --account=ours)
like 'a dry run shows the chain' "$out" '^sbatch .*--ntasks=3 .*--gpus=3 --dependency=afterok:<candidate_gate> --kill-on-invalid-dep=yes --account=ours jobs/generate_candidate'
check 'and does nothing' [ ! -e evidence ]
unlike 'jobs name no site' "$(cat jobs/*.sbatch)" '#SBATCH.*(account|partition|qos|nodelist|constraint|mail)'

# --- here, without Slurm ---
out=$(scripts/submit.sh "${demo[@]}" --local 2>&1)
is 'a local run passes' "$?" 0
like 'its last line is the verdict' "$(tail -n 1 <<<"$out")" '^VALID    evidence/demo  digest [0-9a-f]{8}$'
is 'all stages ran, in order' "$(programs)" 'h3_reference_pass h3_threshold_freeze h3_generate h3_candidate_gate h3_generate h3_compare '
like 'with plan, run, device and two ranks' "$(head -n 1 calls)" '^h3_reference_pass --plan plans/demo.json --run evidence/demo --device cpu .*ranks=2$'
is 'the gate and the candidate use the clean build' "$(grep -c 'H3_LIB=evidence/demo/build/lib' calls)" 3
library=evidence/demo/build/lib/libh3_candidate_cpu.so
check 'which names its commit' grep -qa "revision $commit" $library
like 'and is announced' "$out" "^build +candidate from a clean export of commit $commit"
like 'each stage has its log' "$(cat evidence/demo/logs/h3_compare-local.log)" 'compare +all is well'

before=$(sha256sum <$library)
echo '/* a change that nobody committed */' >>kernels/candidate/cpu/library.c
echo 'no C at all' >kernels/candidate/cpu/broken.c
out=$(scripts/build_candidate.sh evidence/demo)
is 'changes that are not committed are not in the clean build, byte for byte' "$? $(sha256sum <$library)" "0 $before"
like 'and that is said' "$out" 'not committed are not in it'
git checkout -q kernels && rm kernels/candidate/cpu/broken.c
mkdir plain && cp -R jobs scripts bin plans plain && mkdir -p plain/lib/h3 && cp $library plain/lib/h3
out=$(cd plain && scripts/build_candidate.sh evidence/demo)
like 'outside git the built library is taken, and that is said' "$? $out" '^0 .*no git checkout here'
rm -rf plain

echo 1 >control/candidate_gate
out=$(scripts/submit.sh "${demo[@]}" --local --from candidate_gate 2>errors)
is 'the first failing stage gives the exit code' "$?" 1
is 'its reason is on stderr, without mpirun around it' "$(cat errors)" 'h3_candidate_gate: told to end with 1'
is 'the next step is the last line' "$(tail -n 1 <<<"$out")" \
    'next: put that right, then scripts/submit.sh --plan plans/demo.json --run evidence/demo --local --from candidate_gate'
unlike 'nothing runs after it' "$(tail -n 1 calls)" compare
out=$(scripts/submit.sh --status --run evidence/demo)
like 'status: done' "$out" '^reference pass +local +done +[0-9:]+ +all is well$'
like 'status: failed, with its reason' "$out" '^candidate gate +local +FAILED 1 +[0-9:]+ +told to end with 1$'
like 'status: what rests on it is stale' "$out" '^generate candidate +local +stale +[0-9:]+ +needs a VALID gate$'
is 'status: the next step' "$(tail -n 1 <<<"$out")" \
    'next: put that right, then scripts/submit.sh --plan plans/demo.json --run evidence/demo --local --from candidate_gate'

echo crash >control/candidate_gate
out=$(H3_CLEAN_BUILD=0 scripts/submit.sh "${demo[@]}" --local --only candidate_gate 2>&1)
is 'a rank that crashes is exit 4' "$?" 4
like 'and explained' "$out" 'h3_candidate_gate: a rank ended by itself .*signal 11'

# mpirun fails by itself, with the exit code of a failed qualification
mkdir -p "$testbed/mpi/bin"
cat >"$testbed/mpi/bin/mpirun" <<'MPIRUN'
#!/bin/bash
cat "$FAKE_WORDS" >&2
echo "$OMPI_MCA_orte_tmpdir_base" >>"$FAKE_WORDS.folders"
[ -d "$(dirname "$OMPI_MCA_orte_tmpdir_base")" ] || exit 9
exit 1
MPIRUN
chmod +x "$testbed/mpi/bin/mpirun"
export FAKE_WORDS=$testbed/words
fake_mpirun() { (unset OMPI_MCA_orte_tmpdir_base; H3_CLEAN_BUILD=0 MPI_HOME=$testbed/mpi scripts/submit.sh "${demo[@]}" --local --only compare 2>&1); }
for words in 'There are not enough slots available in the system' 'mpirun was unable to launch the specified application' \
    '[n1:24210] [[12908,0],0] ORTE_ERROR_LOG: Error in file ../../../orte/util/session_dir.c at line 107'; do
    echo "$words" >"$FAKE_WORDS"
    out=$(fake_mpirun)
    is "exit 4 when mpirun says: ${words:0:40}" "$?" 4
    like 'and its words are kept' "$out" "${words:(-40)}"
done
cat >"$FAKE_WORDS" <<'WORDS'
--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
with errorcode 1.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
--------------------------------------------------------------------------
h3_compare: a limit is exceeded
[n1:31555] Read -1, expected 42880, errno = 3
mpirun: Forwarding signal 18 to job
WORDS
out=$(fake_mpirun)
is 'exit 1 when a rank says so' "$?" 1
like 'its words are the last, without those of MPI around them' "$(scripts/submit.sh --status --run evidence/demo)" '^compare .* a limit is exceeded$'
is 'and the only ones' "$(head -n 1 <<<"$out")" 'h3_compare: a limit is exceeded'
is 'every mpirun has a folder of its own' "$(sort -u "$FAKE_WORDS.folders" | wc -l)" 4
check 'and leaves none' [ ! -e "$(head -n 1 "$FAKE_WORDS.folders")" ]

echo 75 >control/candidate_gate
out=$(H3_CLEAN_BUILD=0 scripts/submit.sh "${demo[@]}" --local --only candidate_gate 2>&1)
is 'a stop is relayed as 75' "$?" 75
like 'and the next step resumes' "$out" '^next: .* --resume --local --from candidate_gate$'
like 'which the status says too' "$(scripts/submit.sh --status --run evidence/demo)" '^candidate gate +local +STOPPED +[0-9:]+ '
is 'and its next step' "$(scripts/submit.sh --status --run evidence/demo | tail -n 1)" \
    'next: scripts/submit.sh --plan plans/demo.json --run evidence/demo --resume --local --from candidate_gate'
echo crash >control/generate_provider
resume=evidence/demo/data/generate/provider/resume
mkdir -p $resume && echo '{}' >$resume/state.json
out=$(scripts/submit.sh "${demo[@]}" --local --only generate_provider 2>&1)
like 'a generation that crashed is to be resumed' "$out" 'h3_generate: a rank ended by itself .* run the stage again with --resume$'
is 'where steps are saved' "$(tail -n 1 <<<"$out")" \
    'next: put that right, then scripts/submit.sh --plan plans/demo.json --run evidence/demo --resume --local --from generate_provider'
is 'by the status too' "$(scripts/submit.sh --status --run evidence/demo | tail -n 1)" "$(tail -n 1 <<<"$out")"
rm -r $resume
unlike 'and where none are it begins again' "$(scripts/submit.sh --status --run evidence/demo | tail -n 1)" resume

# begun RUN: until the stage waits; sets shell, the process of its job
begun() {
    for ((i = 0; i < 100; i++)); do [ ! -e waiting.1 ] || break; sleep 0.1; done
    shell=$(awk -F '\t' '{ last = $4 } END { split(last, word, " "); print word[2] }' "$1/logs/history")
}
kill_shell() { # as when the machine goes down: no trap is run; what it started is ended too
    local below
    below=$(pgrep -P "$shell") && kill -KILL "$shell" && kill $below
}
echo wait >control/generate_provider
H3_CLEAN_BUILD=0 setsid scripts/submit.sh "${demo[@]}" --local --only generate_provider >/dev/null 2>&1 &
terminal=$!
begun evidence/demo
kill -HUP -- -$terminal
wait $terminal
stopped() { for ((i = 0; i < 100; i++)); do tail -n 1 evidence/demo/logs/history | grep -q $'\texit ' && return; sleep 0.1; done; return 1; }
check 'a terminal that is closed ends the stage' stopped
like 'as stopped' "$(scripts/submit.sh --status --run evidence/demo)" '^generate provider +local +STOPPED '
rm -f waiting.*
H3_CLEAN_BUILD=0 H3_PLAN=plans/demo.json H3_RUN=evidence/demo bash jobs/generate_provider.sbatch >/dev/null 2>&1 &
begun evidence/demo
like 'status: a local stage runs' "$(scripts/submit.sh --status --run evidence/demo)" '^generate provider +local +running '
check 'its shell is killed' kill_shell
wait $! 2>/dev/null
like 'status: it is known to have gone' "$(scripts/submit.sh --status --run evidence/demo)" '^generate provider +local +KILLED '
like 'and what is next' "$(scripts/submit.sh --status --run evidence/demo | tail -n 1)" '^next: scripts/submit.sh .* --from generate_provider$'
mkdir "$testbed/slow" && printf '#!/bin/bash\ntouch %q; sleep 2; exec %q "$@"\n' "$testbed/building" "$(command -v make)" >"$testbed/slow/make"
chmod +x "$testbed/slow/make"
PATH=$testbed/slow:$PATH H3_PLAN=plans/demo.json H3_RUN=evidence/demo bash jobs/candidate_gate.sbatch >/dev/null 2>&1 &
for ((i = 0; i < 100; i++)); do [ ! -e "$testbed/building" ] || break; sleep 0.1; done
kill -TERM $!
wait $!
is 'a stage that is stopped while its candidate is built is stopped too' "$? $(tail -n 1 evidence/demo/logs/history | cut -f 2,4)" \
    $'75 candidate_gate\texit 75'
rm -f control/generate_provider waiting.*

mv bin/h3_candidate_gate bin/away
out=$(H3_CLEAN_BUILD=0 scripts/submit.sh "${demo[@]}" --local --only candidate_gate 2>&1)
like 'a program that was not built is exit 4 and says so' "$? $out" '^4 jobs: no program h3_candidate_gate .*make all'
mv bin/away bin/h3_candidate_gate
out=$(scripts/submit.sh --plan plans/demo.json --run /proc/1 --local 2>&1)
is 'a run folder that cannot be written is exit 4, in one line' "$? $out" '4 submit: cannot write to /proc/1/logs; check its permissions and whether it is mounted read-only'
mkdir -p evidence/full/build && touch evidence/full/build/lib
out=$(scripts/submit.sh --plan plans/demo.json --run evidence/full --local --only candidate_gate 2>&1)
like 'a clean build that cannot be kept is exit 4' "$? $out" '^4 .*'
like 'and says where' "$out" '^build +cannot write to evidence/full/build/lib; '
rm -rf control/* evidence calls

# --- Slurm ---
environment=$(SLURM_TESTBED_DIR='' "$here/tests/tools/slurm_testbed.sh" up --nodes 1 --dir "$testbed/slurm" 2>&2)
check 'Slurm starts' eval "$environment"
state_of() { scontrol -o show job "$1" | sed -E 's/.* JobState=([A-Z]+) .*/\1/'; }
jobs_of() { awk '$2 ~ /^[0-9]+$/ {print $2} $3 ~ /^[0-9]+$/ {print $3}' | sort -nu; }
wait_for_jobs() { # until none of the user's jobs is queued or running
    for ((i = 0; i < 300; i++)); do
        [ -n "$(squeue -h -t PD,R,CG)" ] || return 0
        sleep 0.2
    done
    return 1
}

out=$(scripts/submit.sh "${demo[@]}")
is 'a chain is submitted: a line for each stage' "$? $(jobs_of <<<"$out" | wc -l)" '0 6'
like 'each after the one before' "$out" '^threshold freeze +[0-9]+ +when [0-9]+ has passed$'
check 'the chain ends' wait_for_jobs
is 'every stage ran once, in order' "$(programs)" 'h3_reference_pass h3_threshold_freeze h3_generate h3_candidate_gate h3_generate h3_compare '
out=$(scripts/submit.sh --status --run evidence/demo)
is 'status: six done' "$(grep -cE '^[a-z ]+ [0-9]+ +done +[0-9:]+ +all is well$' <<<"$out")" 6
unlike 'status: no next step' "$out" '^next'
is 'logs are with the run' "$(find evidence/demo/logs -name 'h3_*-[0-9]*.log' | wc -l)" 6

: >calls
out=$(H3_RUN=evidence/demo sbatch --parsable --wait jobs/candidate_gate.sbatch)
is 'sbatch of one job file reruns just that stage' "$? $(programs)" '0 h3_candidate_gate '
like 'with its log where sbatch was called' "$(cat "h3_candidate_gate-$out.log")" 'candidate gate +all is well'

: >calls
echo 3 >control/candidate_gate
job=$(scripts/submit.sh "${demo[@]}" --from candidate_gate | jobs_of | head -n 1)
check 'a chain with a failing stage ends' wait_for_jobs
like 'the job has the exit code of the program' "$(scontrol -o show job "$job")" ' JobState=FAILED .* ExitCode=3:0 '
is 'nothing behind it ran' "$(programs)" 'h3_candidate_gate '
out=$(scripts/submit.sh --status --run evidence/demo)
like 'status: failed, when and why' "$out" "^candidate gate +$job +FAILED 3 +[0-9:]+ +told to end with 3\$"
like 'status: what is behind it waits' "$out" '^generate candidate +- +waiting +needs a VALID gate$'
is 'status: the next step' "$(tail -n 1 <<<"$out")" \
    'next: put that right, then scripts/submit.sh --plan plans/demo.json --run evidence/demo --from candidate_gate'
rm control/candidate_gate

# stopped by USR1 before its time ends: back in the queue, resumed, done; the next stage waits for that
: >calls
echo wait >control/reference_pass
mkdir -p evidence/other
out=$(scripts/submit.sh --plan plans/demo.json --run evidence/other)
job=$(jobs_of <<<"$out" | head -n 1)
for ((i = 0; i < 100; i++)); do [ ! -e waiting.1 ] || break; sleep 0.1; done
like 'status: running' "$(scripts/submit.sh --status --run evidence/other)" "^reference pass +$job +running"
like 'status: the next one waits in the queue' "$(scripts/submit.sh --status --run evidence/other)" \
    '^threshold freeze +[0-9]+ +waiting +[0-9:]+ +needs reference pass$'
out=$(scripts/submit.sh --plan plans/demo.json --run evidence/other --from threshold_freeze 2>&1)
like 'a stage that is in the queue is not submitted again' "$? $out" \
    "^2 submit: threshold freeze is job [0-9]+ of this run already, and pending; wait for it, or scancel [0-9]+ first\$"
scancel --batch --signal=USR1 "$job"
check 'the stopped chain ends' wait_for_jobs
like 'it was requeued once' "$(scontrol -o show job "$job")" ' Restarts=1 '
is 'and completed' "$(state_of "$job")" COMPLETED
is 'the second start resumes' "$(grep -c '^h3_reference_pass .*--resume' calls) $(grep -c '^h3_reference_pass' calls)" '1 2'
is 'and the chain went on' "$(tail -n 1 calls | cut -d' ' -f1)" h3_compare
like 'both parts are in one log' "$(cat "evidence/other/logs/h3_reference_pass-$job.log")" 'stopped, requeued \(1 of 3\)'

# cancelled by a person: it stays cancelled, and nothing of what is saved is lost
rm -f waiting.*
echo wait >control/generate_provider
job=$(scripts/submit.sh --plan plans/demo.json --run evidence/other --only generate_provider | jobs_of)
for ((i = 0; i < 100; i++)); do [ ! -e waiting.1 ] || break; sleep 0.1; done
scancel "$job"
check 'a cancelled job ends' wait_for_jobs
like 'and does not come back' "$(scontrol -o show job "$job")" ' JobState=CANCELLED .* Restarts=0 '
like 'which its log says' "$(cat "evidence/other/logs/h3_generate_provider-$job.log")" '^jobs: cancelled, not requeued; what is saved is kept for --resume$'
out=$(scripts/submit.sh --status --run evidence/other)
like 'status: stopped' "$out" "^generate provider +$job +STOPPED +"
is 'status: how it goes on' "$(tail -n 1 <<<"$out")" \
    'next: scripts/submit.sh --plan plans/demo.json --run evidence/other --resume --from generate_provider'

rm -f waiting.*
job=$(scripts/submit.sh --plan plans/demo.json --run evidence/other --only generate_provider | jobs_of)
begun evidence/other
check 'the shell of a job is killed' kill_shell
check 'which ends it' wait_for_jobs
like 'status: killed, by what' "$(scripts/submit.sh --status --run evidence/other)" "^generate provider +$job +KILLED 9 +"

for stage in $chain; do check "$stage.sbatch is valid bash" bash -n "jobs/$stage.sbatch"; done
out=$(cd /tmp && bash "$project/jobs/compare.sbatch" 2>&1)
like 'a job started elsewhere says what to do' "$? $out" '^4 .*|call sbatch in the project folder'
tap_end
