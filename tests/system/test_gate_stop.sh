#!/usr/bin/env bash
# An operator that fails in the full model, in a block that no check of block 0 sees: on any number of ranks the gate ends with a gate.json,
# INVALID, exit code 1, and names block and node; the bytes are the same for 1, 2 and 4 ranks.
# timeout: 600
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset H3_WRONG H3_WRONG_FIRST
check 'a clean candidate' clean_candidate "$work"
H3_LIB=$H3_LIB:$chain_build/tests
small_plan "$work" libwrong.so
PLAN=$work/plan.json run=$work/run
no_leak_search
check 'a reference' stage 2 reference_pass "$run"
check 'and its bounds' stage 2 threshold_freeze "$run"

# gate RANKS: rc, out and json of one run of the gate
gate() {
    rm -f "$run/gate.json" "$run.log" "$work/first"
    H3_WRONG_FIRST=$work/first stage "$1" candidate_gate "$run" --watchdog 30
    rc=$?
    out=$(cat "$run.log") json=$run/gate.json
}
field() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" "$json" 2>/dev/null | head -n 1; }

# NODE DIRECTION BLOCK: the first block, in the order of the work, that has other weights than block 0
while read -r node direction block; do
    for ranks in 1 2 4; do
        H3_WRONG=$node:elsewhere_refuses:$direction gate $ranks
        what="$node, $direction, $ranks ranks"
        is "$what: INVALID, written, exit 1" "$rc $(field verdict) $(field block0) $(field full_model) $(field first_failed_check) $(field first_failure)" \
            "1 INVALID passed failed full.execution $node"
        like "$what: block and node are named" "$(field first_failed_detail)" "^block $block node $node: operator .* failed in $direction: this one does not work"
        like "$what: and said" "$out" "block $block node $node: "
        unlike "$what: nobody is left waiting, nobody complains" "$out" 'silent|lost|aborted|MPI_ABORT|has stopped'
        [ $ranks != 1 ] || cp "$json" "$work/alone.json"
        check "$what: the bytes of one rank" cmp "$json" "$work/alone.json"
    done
done <<'CASES'
norm2 forward 1
ffn_down backward 7
CASES

gate 4
like 'with the right operators the same run is VALID on 4 ranks' "$rc $(tail -n 1 <<<"$out")" '^0 VALID '
tap_end
