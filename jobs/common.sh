# Sourced by every job (and by scripts/submit.sh for the table of stages). A job takes its orders from the environment:
#
#   H3_PLAN    plan                             (plans/demo.json)
#   H3_RUN     run directory                    (evidence/demo)
#   H3_RANKS   MPI ranks                        (the job's --ntasks, or 2)
#   H3_DEVICE  cpu or cuda                      (cpu)
#   H3_ROOT    the project, or share/h3 of an installed one (the folder that sbatch was called in)
#   H3_BIN     folder of the programs           (bin/ of the project, or of the installation)
#   H3_LIB     folder of the operator libraries (lib/h3/, found by the programs themselves)
#   H3_CLEAN_BUILD=0  the gate takes the candidate as built, not from a clean export of the commit
#   H3_RESUME=1       continue a stage that was stopped; a requeued job does so by itself
#   H3_ARGS    further options of the program, separated by blanks
#
# Exit code: the program's. 75 (stopped by a signal, safe to requeue) puts the job back in the queue, three times at most; a job
# that somebody cancelled stays cancelled.
# shellcheck shell=bash

# shellcheck disable=SC2034  # scripts/submit.sh reads it
h3_chain=(reference_pass threshold_freeze generate_provider candidate_gate generate_candidate compare)
h3_title() { echo "${1//_/ }"; }
h3_log_name() { echo "h3_$1-$2.log"; } # as sbatch's %x-%j

h3_make_logs() { # h3_make_logs WHO RUN: the folder of its logs, or why there is none
    if mkdir -p -- "$2/logs" 2>/dev/null && [ -w "$2/logs" ]; then return; fi
    echo "$1: cannot write to $2/logs; check its permissions and whether it is mounted read-only" >&2
    return 4
}

# h3_note STAGE EVENT [JOB]: one line of the run's history, which "submit.sh --status" reads
h3_note() { printf '%(%s)T\t%s\t%s\t%s\t%s\n' -1 "$1" "${3:-${SLURM_JOB_ID:-local}}" "$2" "$H3_PLAN" >>"$H3_RUN/logs/history"; }

# The last thing of a job: its exit in the history; after the last stage, and after a failure, the report of what there is.
h3_end() {
    local report
    h3_note "$H3_STAGE" "exit $1"
    if [ "$1" = 0 ] && [ "$H3_STAGE" != compare ]; then return; fi
    if [ -n "${SLURM_JOB_ID:-}" ] && report=$(h3_find_program h3_report 2>/dev/null); then "$report" --run "$H3_RUN" >/dev/null 2>&1 || true; fi
}

h3_begin() { # h3_begin STAGE: settles the orders; from here on the stage's exit is in the history
    H3_STAGE=$1
    H3_ROOT=$(cd "${H3_ROOT:-${SLURM_SUBMIT_DIR:-.}}" && pwd)
    H3_PLAN=${H3_PLAN:-plans/demo.json}
    H3_RUN=${H3_RUN:-evidence/demo}
    H3_RANKS=${H3_RANKS:-${SLURM_NTASKS:-2}}
    H3_DEVICE=${H3_DEVICE:-cpu}
    export H3_ROOT H3_PLAN H3_RUN H3_RANKS H3_DEVICE
    cd "$H3_ROOT" || exit 4
    h3_make_logs jobs "$H3_RUN" || exit
    trap 'h3_end $?' EXIT
    trap 'h3_requeue; exit 75' USR1 TERM INT HUP # until mpirun runs: a clean build is nothing to wait for
    h3_note "$H3_STAGE" "started $$ $HOSTNAME"
}

h3_find_program() { # prints the path of a program
    local folder
    for folder in ${H3_BIN:+"$H3_BIN"} bin ../../bin; do
        if [ -x "$folder/$1" ]; then
            echo "$folder/$1"
            return
        fi
    done
    echo "jobs: no program $1 in ${H3_BIN:-$H3_ROOT/bin}; run: make all" >&2
    return 1
}

h3_mpi_settings() {
    if [ -t 2 ]; then export H3_TERMINAL=1; fi # ranks see a pipe; progress goes to the terminal behind it
    # Ranks that wait must not take the core from those that work, and threads share all cores of the job.
    export OMPI_MCA_mpi_yield_when_idle=1
    export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy:-none}
    if [ -z "${SLURM_JOB_ID:-}" ]; then
        export OMPI_MCA_rmaps_base_oversubscribe=1
        export OMPI_MCA_btl=${OMPI_MCA_btl:-self,vader,tcp}
    fi
    export HWLOC_HIDE_ERRORS=${HWLOC_HIDE_ERRORS:-2} # where /sys is not mounted it complains, and works
    if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
    if [ -z "${OMP_NUM_THREADS:-}" ]; then
        OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-$(($(nproc) / H3_RANKS))}
        [ "$OMP_NUM_THREADS" -gt 0 ] || OMP_NUM_THREADS=1
        export OMP_NUM_THREADS
    fi
}

# The words of mpirun and MPI about a rank that exited non-zero say nothing that the rank has not said itself. Its words about what it
# could not do are kept, and noted in the file $1, because its exit code 1 would then look like a failed qualification.
h3_filter_mpirun() {
    sed -u -E -e '/-{70,}$/d' -e '/^$/d' -e '/^Primary job  terminated normally/d' -e '/^a non-zero exit code\. Per user-direction/d' \
        -e '/^mpirun detected that one or more processes exited/d' -e '/^the job to be terminated\. The first process/d' \
        -e '/^  (Process name|Exit code): /d' -e '/^mpirun: Forwarding signal [0-9]+ to job$/d' \
        -e '/^MPI_ABORT was invoked on rank /d' -e '/^with errorcode [0-9]+\.$/d' -e '/^NOTE: invoking MPI_ABORT causes/d' \
        -e '/^You may or may not see output from other processes/d' -e '/^exactly when Open MPI kills them\.$/d' \
        -e '/^\[[^]]+\] Read -1, expected [0-9]+, errno = [0-9]+$/d' \
        -e "/^(There are not enough slots|mpirun was unable|An ORTE daemon|ORTE (was|has)|It looks like (orte|MPI|opal)_init|.* ORTE_ERROR_LOG: .*session_dir)/w $1" >&2
}

# Runs mpirun in the background, so that signals reach this shell at once; passes USR1 (time is nearly up) on to all ranks.
h3_mpirun() {
    local status filter pid folder words interrupted=1 stopped=''
    folder=$(mktemp -d) || return 4
    words=$folder/words
    # mpirun fails when another one that ends removes the folder that both share in /tmp. (Other nodes do not have this one.)
    if [ "${SLURM_JOB_NUM_NODES:-1}" = 1 ]; then export OMPI_MCA_orte_tmpdir_base=${OMPI_MCA_orte_tmpdir_base:-$folder}; fi
    export EVENT_NOEPOLL=1 # mpirun's event library says "Epoll MOD(1) on fd ... failed" at times while it ends, which means nothing
    exec 3> >(h3_filter_mpirun "$words")
    filter=$!
    "${MPI_HOME:+$MPI_HOME/bin/}mpirun" -n "$H3_RANKS" "$@" 2>&3 </dev/null &
    pid=$!
    exec 3>&-
    trap 'interrupted=1; kill -USR1 $pid 2>/dev/null' USR1
    trap 'interrupted=1 stopped=1; kill -TERM $pid 2>/dev/null' TERM INT HUP
    while [ -n "$interrupted" ]; do
        interrupted=''
        wait "$pid"
        status=$?
    done
    trap '' USR1 # what is left takes seconds
    trap - TERM INT HUP
    wait "$filter"
    if [ -n "$stopped" ]; then
        status=75
    elif [ "$status" != 0 ] && [ -s "$words" ]; then
        status=4
    fi
    rm -rf "$folder"
    return "$status"
}

# Slurm ends this job, not because its time is up and not to start it again: somebody called scancel.
h3_cancelled() {
    [[ $(scontrol -o show job "$SLURM_JOB_ID" 2>/dev/null) =~ ' JobState='(COMPLETING|CANCELLED)' Reason=None '.*" Restarts=${SLURM_RESTART_COUNT:-0} " ]]
}

# After a 75. Slurm ends this job when it takes it back, perhaps before scontrol has answered.
h3_requeue() {
    [ -n "${SLURM_JOB_ID:-}" ] || return
    if h3_cancelled; then
        echo 'jobs: cancelled, not requeued; what is saved is kept for --resume' >&2
        return
    fi
    if [ "${SLURM_RESTART_COUNT:-0}" -ge 3 ]; then
        echo "jobs: stopped for the fourth time; not requeued again. next: sbatch it with more time and H3_RESUME=1" >&2
        return
    fi
    echo "jobs: stopped, requeued ($((${SLURM_RESTART_COUNT:-0} + 1)) of 3)"
    h3_note "$H3_STAGE" requeued
    trap - EXIT
    if ! scontrol requeue "$SLURM_JOB_ID"; then h3_note "$H3_STAGE" 'exit 75'; fi
}

# h3_previews SIDE: videos for people of what was generated, as the plan's "preview" says. Only a plan that requires them fails for
# want of the program (no FFmpeg); its first stage has refused that already.
h3_previews() {
    local program status=4
    if program=$(h3_find_program h3_preview 2>/dev/null); then
        "$program" --plan "$H3_PLAN" --run "$H3_RUN" --side "$1" </dev/null
        status=$?
    fi
    [ $status != 0 ] && grep -q '"preview"[[:space:]]*:[[:space:]]*"required"' "$H3_PLAN" || return 0
    echo "jobs: the plan requires previews, and h3_preview did not make them$([ -n "$program" ] || echo ' (no such program: scripts/deps.sh --previews, make all)')" >&2
    [ $status -le 4 ] || status=4
    return $status
}

# Sheets and curves of what was compared, passed or not; no verdict depends on them.
h3_sheets() {
    local program
    if program=$(h3_find_program h3_sheet 2>/dev/null); then "$program" --run "$H3_RUN" </dev/null >/dev/null || true; fi
}

h3_run() { # h3_run PROGRAM [OPTION...]: runs it for the stage that was begun, and exits with its code
    local name=$1 program status
    shift
    program=$(h3_find_program "$name") || exit 4
    command -v "${MPI_HOME:+$MPI_HOME/bin/}mpirun" >/dev/null || { echo 'jobs: no mpirun on PATH; run: make deps' >&2; exit 4; }
    if [ "${H3_RESUME:-0}" = 1 ] || [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then set -- --resume "$@"; fi
    if [ "${H3_CLEAN_BUILD:-1}" != 0 ] && [ -d "$H3_RUN/build/lib" ]; then export H3_LIB=$H3_RUN/build/lib; fi
    h3_mpi_settings
    # shellcheck disable=SC2086  # several options
    h3_mpirun "$program" --plan "$H3_PLAN" --run "$H3_RUN" --device "$H3_DEVICE" "$@" ${H3_ARGS:-}
    status=$?
    if [ $status = 0 ] && [ "$name" = h3_generate ]; then
        h3_previews "${H3_STAGE#generate_}"
        status=$?
    fi
    if [ $status -le 1 ] && [ "$name" = h3_compare ]; then h3_sheets; fi
    case $status in
        0|1|2|3|4) ;;
        75) h3_requeue ;;
        *)
            echo "$name: a rank ended by itself (mpirun exit $status$([ $status -le 128 ] || echo ", signal $((status - 128))"));" \
                "look for its last words above, then run the stage again$([ "$name" != h3_generate ] || echo ' with --resume')" >&2
            status=4
            ;;
    esac
    exit $status
}
