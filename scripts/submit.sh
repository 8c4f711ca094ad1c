#!/usr/bin/env bash
# Runs the stages of a qualification in their order, as a chain of Slurm jobs or right here.
#
#   scripts/submit.sh --plan PLAN --run RUN [options] [-- SBATCH-OPTIONS...]
#   scripts/submit.sh --status --run RUN
#
#   --plan FILE      what to qualify, for example plans/demo.json
#   --run FOLDER     where its evidence goes, for example evidence/demo
#   --from STAGE     start there; the stages before it have passed already
#   --only STAGE     run just that one
#   --ranks N        MPI ranks of every stage (2)
#   --device D       cpu or cuda (cpu); cuda asks for one GPU a rank
#   --resume         continue a stage that was stopped: a generation after its last saved step, which it otherwise throws away
#   --local          without Slurm: one stage after another, here; ends with the exit code of the first that fails
#   --dry-run        print what would be submitted or run
#   --status         how far a run has come
#
# Stages: reference_pass threshold_freeze generate_provider candidate_gate generate_candidate compare; and, with --only, diagnose.
# A job starts when the one before it has passed; when one fails, those behind it are cancelled.
# Account, partition and time limit are the site's: SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_TIMELIMIT, or options after "--".
# One stage alone: sbatch jobs/candidate_gate.sbatch, with H3_PLAN and H3_RUN in the environment (see jobs/common.sh).
#
# Exit codes: 0 done or submitted; 2 usage; 4 Slurm refuses or is absent; with --local also those of the stages.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 4
# shellcheck source=jobs/common.sh
. "$root/jobs/common.sh"

plan='' run='' from='' only='' ranks=2 device=cpu local=0 dry_run=0 status=0
sbatch_options=()

die() { # die CODE TEXT
    echo "submit: $2" >&2
    exit "$1"
}
help() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"; }

is_stage() { [[ " ${h3_chain[*]} diagnose " == *" $1 "* ]]; }
# Jobs work in the project's root: a path is written as seen from there.
from_root() {
    local path
    path=$(realpath -ms -- "$1") || return
    echo "${path#"$root"/}"
}

parse() {
    while [ $# -gt 0 ]; do
        case $1 in
            --plan|--run|--from|--only|--ranks|--device)
                [ -n "${2:-}" ] || die 2 "$1 needs a value; see --help"
                declare -g "${1#--}=$2"
                shift
                ;;
            --local) local=1 ;;
            --dry-run) dry_run=1 ;;
            --status) status=1 ;;
            --resume) export H3_RESUME=1 ;;
            --help|-h) help; exit ;;
            --) shift; sbatch_options=("$@"); break ;;
            *) die 2 "unknown option $1; see --help" ;;
        esac
        shift
    done
}

validate() {
    [ -n "$run" ] || die 2 'which run? Add --run, for example --run evidence/demo'
    run=$(from_root "$run")
    cd "$root" || exit 4
    if [ $status = 1 ]; then
        [ -d "$run" ] || die 2 "no run in $run; start one with --plan and --run"
        return
    fi
    [ -n "$plan" ] || die 2 'which plan? Add --plan, for example --plan plans/demo.json'
    [ -z "$from" ] || [ -z "$only" ] || die 2 '--from and --only exclude each other'
    [ -z "$from$only" ] || is_stage "$from$only" || die 2 "no stage $from$only; stages: ${h3_chain[*]}, and --only diagnose"
    [ "$from" != diagnose ] || die 2 'diagnose is no part of the chain; use --only diagnose'
    [[ $ranks =~ ^[1-9][0-9]{0,4}$ ]] || die 2 "--ranks $ranks is no number of ranks"
    [[ $device =~ ^(cpu|cuda)$ ]] || die 2 "--device $device: cpu or cuda"
    [ ! -e "$run" ] || [ -d "$run" ] || die 2 "$run is in the way: not a folder"
    if [ $local = 0 ] && [ $dry_run = 0 ]; then
        command -v sbatch >/dev/null || die 4 'no sbatch here; add --local to run the stages without Slurm'
    fi
    export H3_ROOT=$root H3_PLAN=$plan H3_RUN=$run H3_RANKS=$ranks H3_DEVICE=$device
}

find_plan() { # as seen from here, or from the project
    if [ -f "$plan" ]; then plan=$(from_root "$plan"); return; fi
    [ -f "$root/$plan" ] || die 2 "no plan $plan; shipped ones: $(cd "$root" && echo plans/*.json)"
}

stages() { # those to run, one a line
    local stage on=1
    if [ -n "$only" ]; then
        echo "$only"
        return
    fi
    [ -z "$from" ] || on=0
    for stage in "${h3_chain[@]}"; do
        [ "$stage" != "$from" ] || on=1
        [ $on = 0 ] || echo "$stage"
    done
}

# again STAGE [EXIT]: the command that goes on from there; a generation that has saved steps would lose them without --resume
again() {
    local options='' first=''
    if [ "${2:-}" = 75 ] || [ -f "$run/data/generate/${1#generate_}/resume/state.json" ]; then options+=' --resume'; fi
    [[ ${2:-75} = 75 ]] || first='put that right, then '
    [ "$local" = 0 ] || options+=' --local'
    [ "$ranks" = 2 ] || options+=" --ranks $ranks"
    [ "$device" = cpu ] || options+=" --device $device"
    if [ "$1" = diagnose ]; then options+=' --only'; else options+=' --from'; fi
    printf 'next: %sscripts/submit.sh --plan %q --run %q%s %s\n' "$first" "$plan" "$run" "$options" "$1"
}

# --- here, without Slurm ---

logged() { # logged LOG COMMAND...: stdout and stderr stay apart, and both go to the log too
    local log=$1
    shift
    { { "$@" 2>&1 >&3 3>&- | tee -a "$log" >&2 3>&-; exit "${PIPESTATUS[0]}"; } 3>&1 | tee -a "$log"; exit "${PIPESTATUS[0]}"; }
}

verdict_line() {
    local digest files=() stage
    if [ -f "$run/report.json" ]; then
        files=("$run/report.json")
    else
        for stage in "${h3_chain[@]}"; do files+=("$run/stages/$stage/stage.json"); done
    fi
    digest=$(cat -- "${files[@]}" 2>/dev/null | sha256sum)
    printf 'VALID    %s%s  digest %s\n' "$run" "$([ ! -f "$run/report.html" ] || echo "  report: $run/report.html")" "${digest:0:8}"
}

write_report() { # of what the run has shown so far, whether it passed or not
    local program said
    [ -f "$run/plan.json" ] || return 0 # nothing was begun
    if program=$(h3_find_program h3_report 2>/dev/null) && said=$("$program" --run "$run"); then echo "$said" | tail -n 1; fi
}

run_local() {
    local stage code last=''
    h3_make_logs submit "$run" || exit
    for stage in $(stages); do
        (unset SLURM_JOB_ID SLURM_RESTART_COUNT; logged "$run/logs/$(h3_log_name "$stage" local)" bash "jobs/$stage.sbatch")
        code=$?
        if [ $code != 0 ]; then
            write_report
            again "$stage" $code
            exit $code
        fi
        last=$stage
    done
    write_report >/dev/null
    [ "$last" != compare ] || [ -n "$only" ] || verdict_line
}

# --- Slurm ---

command_for() { # command_for STAGE DEPENDENCY: fills the array `command`
    command=(sbatch --parsable --ntasks="$ranks" --output="$run/logs/%x-%j.log")
    [ "$device" = cpu ] || command+=(--gpus="$ranks")
    [ -z "$2" ] || command+=(--dependency="afterok:$2" --kill-on-invalid-dep=yes)
    command+=(${sbatch_options[@]+"${sbatch_options[@]}"} "jobs/$1.sbatch")
}

# A second job of a stage fails, and would stand in the status in the first one's place.
not_queued() { # not_queued STAGE
    local job slurm
    IFS=$'\t' read -r _ _ job _ < <(history_of "$1")
    if [[ ${job:-local} = local ]]; then return; fi
    read -r slurm _ < <(slurm_state "$job")
    if [[ ${slurm:-} =~ ^(PENDING|CONFIGURING|RUNNING|SUSPENDED)$ ]]; then
        die 2 "$(h3_title "$1") is job $job of this run already, and ${slurm,,}; wait for it, or scancel $job first"
    fi
}

submit() {
    local stage job='' before='' jobs=()
    h3_make_logs submit "$run" || exit
    for stage in $(stages); do not_queued "$stage"; done
    printf '%-19s %-8s %s\n' stage job starts
    for stage in $(stages); do
        command_for "$stage" "$job"
        if ! job=$("${command[@]}"); then
            [ ${#jobs[@]} = 0 ] || scancel "${jobs[@]}"
            die 4 "Slurm did not take $(h3_title "$stage"); nothing of the chain is left in the queue; see what sbatch said, or add --local to run here"
        fi
        job=${job%%;*}
        jobs+=("$job")
        h3_note "$stage" submitted "$job"
        printf '%-19s %-8s %s\n' "$(h3_title "$stage")" "$job" "${before:+when $before has passed}"
        before=$job
    done
    echo "status: scripts/submit.sh --status --run $(printf %q "$run")"
}

show_plan() { # --dry-run
    local stage job=''
    printf 'H3_ROOT=%q H3_PLAN=%q H3_RUN=%q H3_RANKS=%q H3_DEVICE=%q\n' "$root" "$plan" "$run" "$ranks" "$device"
    for stage in $(stages); do
        if [ $local = 1 ]; then
            echo "bash jobs/$stage.sbatch"
        else
            command_for "$stage" "$job"
            echo "${command[*]}"
            job="<$stage>"
        fi
    done
}

# --- status ---

verdict_of() { sed -n 's/^[[:space:]]*"verdict":[[:space:]]*"\([A-Za-z]*\)".*/\1/p' "$run/stages/$1/stage.json" 2>/dev/null | head -n 1; }

history_of() { awk -F '\t' -v stage="$1" '$2 == stage { last = $0 } END { if (last) print last }' "$run/logs/history" 2>/dev/null; }

needs_of() { # the stages whose outputs it reads
    case $1 in
        threshold_freeze|generate_provider) echo reference_pass ;;
        candidate_gate|diagnose) echo reference_pass threshold_freeze ;;
        generate_candidate) echo candidate_gate ;;
        compare) echo generate_provider generate_candidate ;;
    esac
}

# needs STAGE: what it waits for, in words: a stage that it reads from and that is not done, else the one before it in the chain
needs() {
    local stage before=''
    for stage in $(needs_of "$1"); do
        if [ "${states[$stage]:-}" != 'done' ]; then before=$stage; fi
    done
    if [ -z "$before" ]; then
        for stage in "${h3_chain[@]}"; do
            if [ "$stage" = "$1" ]; then break; fi
            before=$stage
        done
    fi
    case $before in
        '') ;;
        candidate_gate) echo 'needs a VALID gate' ;;
        *) echo "needs $(h3_title "$before")" ;;
    esac
}

last_words() { # last_words STAGE JOB: the last line of its log, without what the table says anyway
    local log name
    name=$(h3_log_name "$1" "$2")
    for log in "$run/logs/$name" "$name"; do
        [ -f "$log" ] || continue
        grep -v '^[[:space:]]*$' "$log" | tail -n 1 | sed -E -e "s/^stage [0-9]+ +$(h3_title "$1") +//" -e 's/^(h3_[a-z_]+|jobs): //' -e 's/ {3,}/  /g' | cut -c 1-110
        return
    done
}

slurm_state() { # slurm_state JOB: "STATE REASON EXITCODE SIGNAL" while Slurm remembers it
    command -v scontrol >/dev/null || return
    timeout 10 scontrol -o show job "$1" 2>/dev/null |
        sed -nE 's/.* JobState=([A-Z_]+) Reason=([^ ]+) .* ExitCode=([0-9]+):([0-9]+) .*/\1 \2 \3 \4/p' | tail -n 1
}

# gone STAGE PROCESS HOST: a stage that began here so, without Slurm, and whose shell has ended without a word
gone() { [ "${3:-}" = "$HOSTNAME" ] && ! grep -qs "$1" "/proc/$2/cmdline"; }

# describe STAGE: sets job, state, since, progress and, where it ended by itself and did not pass, its exit code
describe() {
    local stage=$1 time event slurm reason slurm_code signal verdict
    job=- state=waiting since='' progress='' code=''
    IFS=$'\t' read -r time _ job event plan_of_run < <(history_of "$stage")
    verdict=$(verdict_of "$stage")
    if [ -z "${event:-}" ]; then
        job=-
        case $verdict in
            '') progress=$(needs "$stage") ;;
            passed|VALID) state='done' ;;
            *) state=FAILED progress=$verdict ;;
        esac
        [ -z "$verdict" ] || since=$(date -r "$run/stages/$stage/stage.json" +%H:%M)
        return
    fi
    plan=$plan_of_run
    since=$(clock_time "$time")
    if [[ $event != exit* ]] && [ "$job" != local ]; then
        read -r slurm reason slurm_code signal < <(slurm_state "$job")
        case ${slurm:-} in
            COMPLETED) event='exit 0' ;;
            FAILED) if [ "$signal" = 0 ]; then event="exit $slurm_code"; else event="killed $signal"; fi ;;
            PENDING)
                if [ "$reason" = Dependency ]; then progress=$(needs "$stage"); else state=queued progress=$reason; fi
                return
                ;;
            CANCELLED)
                if [ "$event" = submitted ]; then job=- since='' progress=$(needs "$stage"); else state=CANCELLED; fi
                return
                ;;
            '') state=unknown progress="Slurm no longer knows job $job"; return ;;
            RUNNING|COMPLETING) ;;
            *) state=$slurm; progress=$(last_words "$stage" "$job"); return ;;
        esac
    fi
    progress=$(last_words "$stage" "$job")
    case $event in
        'exit 0') if [ -n "$verdict" ]; then state='done'; else state=missing progress="no stage.json: run it again"; fi ;;
        'exit 75') state=STOPPED code=75 ;;
        exit*) state="FAILED ${event#exit }" code=${event#exit } ;;
        killed*) state="KILLED ${event#killed }" ;;
        *)
            state=running
            # shellcheck disable=SC2086  # "started PROCESS HOST"
            if [ "$job" = local ] && gone "$stage" ${event#started }; then state=KILLED; fi
            ;;
    esac
}

clock_time() { # today's as hours, older ones with their day
    local format='%H:%M'
    if [ "$(date -d "@$1" +%F)" != "$(date +%F)" ]; then format='%m-%d %H:%M'; fi
    date -d "@$1" "+$format"
}

show_status() {
    local stage job state since progress code plan_of_run next='' exit_code='' pending='' busy='' needed
    local -A states=()
    local shown=("${h3_chain[@]}")
    if [ -n "$(history_of diagnose)" ] || [ -d "$run/stages/diagnose" ]; then shown+=(diagnose); fi
    printf '%-19s %-8s %-11s %-11s %s\n' stage job state since progress
    for stage in "${shown[@]}"; do
        describe "$stage"
        if [ "$state" = 'done' ]; then
            for needed in $(needs_of "$stage"); do
                [ "${states[$needed]}" = 'done' ] || state=stale progress=$(needs "$stage")
            done
        fi
        states[$stage]=$state
        printf '%-19s %-8s %-11s %-11s %s\n' "$(h3_title "$stage")" "$job" "$state" "$since" "$progress" | sed 's/ *$//'
        case $state in
            done) ;;
            running|queued) busy=1 ;;
            waiting) [ "$job" != - ] || pending=${pending:-$stage} ;;
            stale) pending=${pending:-$stage} ;;
            *) [ -n "$next" ] || { next=$stage exit_code=$code; [ "$job" != local ] || local=1; } ;;
        esac
    done
    [ -n "$busy" ] || next=${next:-$pending}
    plan=${plan:-$run/plan.json}
    [ -z "$next" ] || again "$next" "$exit_code"
}

parse "$@"
[ -z "$plan" ] || find_plan
validate
if [ $status = 1 ]; then show_status
elif [ $dry_run = 1 ]; then show_plan
elif [ $local = 1 ]; then run_local
else submit
fi
