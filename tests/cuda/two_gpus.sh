#!/usr/bin/env bash
# The stages on a machine with several GPUs, from built programs: are the bytes the same for one rank, for N ranks with a GPU each (by NCCL) and for two
# ranks on one GPU (by MPI), and does a job end as it should whose rank stops or dies? Run from the project's folder:
#
#   tests/cuda/two_gpus.sh [RANKS...]         RANKS: 2 unless said otherwise; as many GPUs are needed
#
#   H3_BIN, H3_LIB   built programs and libraries (bin, lib/h3), made with make CUDA=1 all
#   H3_PLAN          the plan (plans/demo.json)
#   H3_STAGES        the stages ('reference_pass threshold_freeze candidate_gate')
#   H3_KEEP          a folder for runs and logs; left in place. Without it they are removed.
#
# The last lines are a table; exit code 0 when every line of it holds.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
plan=${H3_PLAN:-plans/demo.json} keep=${H3_KEEP:-} stages=${H3_STAGES:-reference_pass threshold_freeze candidate_gate}
. tests/tools/chain.sh
PLAN=$plan
work=${keep:-$(mktemp -d)}
mkdir -p "$work" || exit 4
[ -n "$keep" ] || trap 'rm -rf "$work"' EXIT
export NCCL_NVLS_ENABLE=0 # as the programs set it themselves: NVLink multicast stays off
limit=10
[ $# -gt 0 ] || set -- 2

table=$work/table failed=0
: >"$table"
row() { printf '%-58s %-6s %s\n' "$1" "$2" "$3" | tee -a "$table"; [ "$2" = ok ] || failed=$((failed + 1)); }
# holds NAME DETAIL COMMAND...: a line of the table
holds() {
    local name=$1 detail=$2
    shift 2
    if "$@"; then row "$name" ok "$detail"; else row "$name" FAILED "$detail"; fi
}
run_stages() { # run_stages RANKS RUN: stages 1 to 3; the time of each in RUN.times
    local one from
    for one in $stages; do
        from=$EPOCHREALTIME
        case $one in
            candidate_gate) stage "$1" "$one" "$2" --device cuda --allow-dirty ;; # an uncommitted tree is no reason not to compare bytes
            *) stage "$1" "$one" "$2" --device cuda ;;
        esac || { tail -n 3 "$2.log"; return 1; }
        awk -v a="$from" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f ", b - a }' >>"$2.times"
    done
}
times() { echo "$(cat "$1.times" 2>/dev/null)s"; }
hand_off() { sed -n 's/.*"hand_off": "\(.*\)",*$/\1/p' "$1/stages/reference_pass/site.json" 2>/dev/null; }
count() { digests "$1" 2>/dev/null | wc -l; }

# --- the same bytes ---
one=$work/ranks1
holds 'the stages, 1 rank' "" run_stages 1 "$one"
row '  seconds a stage' ok "$(times "$one")"
for ranks in "$@"; do
    run=$work/ranks$ranks
    holds "the stages, $ranks ranks, a GPU each" "" run_stages "$ranks" "$run"
    row '  seconds a stage' ok "$(times "$run")"
    holds '  by NCCL' "$(hand_off "$run")" [ "$(hand_off "$run")" = 'from GPU to GPU by NCCL' ]
    holds '  the same bytes' "$(count "$run") files" same_run "$one" "$run"
done
run=$work/shared
CUDA_VISIBLE_DEVICES=0 holds 'the stages, 2 ranks, one GPU' "" run_stages 2 "$run"
holds '  by MPI' "$(hand_off "$run")" grep -q 'through the host by MPI: ranks 0 and 1 share a GPU' <<<"$(hand_off "$run")"
holds '  the same bytes' "$(count "$run") files" same_run "$one" "$run"

# --- a rank that stops, a rank that dies ---
# ranks_of PID: the programs below an mpirun, whatever stands between
ranks_of() {
    local child
    # shellcheck disable=SC2013  # words
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
        case $(cat "/proc/$child/comm" 2>/dev/null) in
            h3_*) echo "$child" ;;
            *) ranks_of "$child" ;;
        esac
    done
}
# disturb SIGNAL RUN PID: once the first files of the reference are there, a signal for the last rank of the job PID
disturb() {
    local i
    for ((i = 0; i < 12000; i++)); do
        [ -z "$(find "$2/data/reference" -name '*.h5' 2>/dev/null | head -n 1)" ] || break
        kill -0 "$3" 2>/dev/null || break
        sleep 0.01
    done
    victim=$(ranks_of "$3" | sort -n | tail -n 1)
    from=$EPOCHREALTIME
    [ -n "$victim" ] && kill -"$1" "$victim"
}
seconds_since() { awk -v a="$from" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }
gone() { [ -n "$victim" ] && ! grep -q '^State:[[:space:]]*[^Z[:space:]]' "/proc/$victim/status" 2>/dev/null; }
no_verdict() { [ ! -e "$1/stages/reference_pass/stage.json" ] && [ ! -e "$1/reference-manifest.json" ]; }
again() { stage "$2" reference_pass "$1" --device cuda && cmp "$one/reference-manifest.json" "$1/reference-manifest.json"; }
ended() { # ended NAME RUN CODE SECONDS PATTERN
    holds "$1: exit 4" "exit $3 after $4 s" [ "$3" = 4 ]
    holds '  the rank is named' "$(grep -hE "$5" "$2.log" | tail -n 1 | cut -c 1-90)" grep -qE "$5" "$2.log"
    holds '  it is gone' "" gone
    holds '  no verdict, no manifest' "" no_verdict "$2"
    holds '  run again: the same bytes' "" again "$2" "$ranks"
}
for ranks in "$@"; do
    last=$((ranks - 1))
    run=$work/stopped$ranks
    mpirun -q -n "$ranks" "$H3_BIN/h3_reference_pass" --plan "$PLAN" --run "$run" --device cuda --watchdog $limit </dev/null >"$run.log" 2>&1 &
    job=$!
    disturb STOP "$run" $job
    wait $job
    code=$?
    ended "$ranks ranks, the last one stopped" "$run" $code "$(seconds_since)" "rank $last (is lost: no heartbeat|silent)|from the GPU of rank $last have not come"
    kill -9 "$victim" 2>/dev/null

    run=$work/killed$ranks
    H3_RANKS=$ranks H3_PLAN=$PLAN H3_RUN=$run H3_DEVICE=cuda H3_CLEAN_BUILD=0 bash jobs/reference_pass.sbatch </dev/null >"$run.log" 2>&1 &
    job=$!
    disturb KILL "$run" $job
    wait $job
    code=$?
    ended "$ranks ranks, the last one killed in its job" "$run" $code "$(seconds_since)" "rank $last .*signal 9"
done
run=$work/none
CUDA_VISIBLE_DEVICES='' stage 1 reference_pass "$run" --device cuda
code=$?
holds 'no GPU to be seen: exit 4' "$(tail -n 1 "$run.log" | cut -c 1-90)" [ $code = 4 ]

printf '\n%s, ranks %s\n' "$PLAN" "1 $*"
cat "$table"
echo "two_gpus: $([ $failed = 0 ] && echo 'all hold' || echo "$failed FAILED")"
[ $failed = 0 ]
