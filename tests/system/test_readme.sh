#!/usr/bin/env bash
# Every command that README.md shows, in the order in which it shows them, with evidence/ in a folder of the test's own.
# `make check` is this run itself: only its first step is looked at.
# timeout: 400
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
unset OMP_NUM_THREADS
work=$(mktemp -d)
cleanup() {
    tests/tools/slurm_testbed.sh down --dir "$work/slurm" >&2
    rm -rf "$work"
}
trap cleanup EXIT
mkdir "$work/slurm" "$work/evidence"

commands=$(sed -nE 's/^    ((make|scripts\/|mpirun|cc|bin\/|H3_[A-Z]+=).*)$/\1/p' README.md)
shown=$(grep -cE '^    [^ 0-9|+]' README.md)
is 'every line that looks like a command is one' "$(wc -l <<<"$commands")" "$shown"
[ "$shown" -ge 15 ] && ok 'there are commands' || not_ok 'there are commands' "only $shown"

jobs_done() { # until no job is queued or running
    local i
    for ((i = 0; i < 600; i++)); do
        [ -n "$(squeue -h -t PD,R,CG)" ] || return 0
        sleep 0.2
    done
    return 1
}

eval "$(SLURM_TESTBED_DIR='' tests/tools/slurm_testbed.sh up --nodes 1 --dir "$work/slurm" 2>&2)"
while IFS= read -r line; do
    command=${line//evidence\//$work/evidence/}
    case $line in
        'make check') check "$line" env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory deps; continue ;;
        'make demo')
            out=$(env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory demo 2>&1 </dev/null)
            is "$line" "$?" 0
            like 'it ends in VALID' "$(tail -n 1 <<<"$out")" '^VALID '
            continue ;;
    esac
    out=$(eval "$command" 2>&1 </dev/null)
    is "$line" "$?" 0
    [ -z "$out" ] || printf '%s\n' "$out" | tail -n 5 | sed 's/^/# /' >&2
    case $line in
        *sbatch* | 'scripts/submit.sh --plan'*) check 'its jobs end' jobs_done ;;
        *--only*swiglu*) like 'a part of the checks is PARTIAL' "$(tail -n 1 <<<"$out")" '^PARTIAL ' ;;
        *--only*candidate_gate*) like 'it is VALID' "$out" '^VALID ' ;;
        *h3_verify*) like 'it is VALID' "$(tail -n 1 <<<"$out")" '^VALID ' ;;
    esac
done <<<"$commands"
like 'the Slurm run is VALID' "$(cat "$work/evidence/smoke-slurm/gate.json")" '"verdict": "VALID"'
tap_end
