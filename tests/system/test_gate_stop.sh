#!/usr/bin/env bash
# An operator that fails in the full model, in a block that no check of block 0 sees: on any number of ranks the gate ends with a gate.json,
# INVALID, exit code 1, and names block and node; the bytes are the same for 1, 2 and 4 ranks.
# timeout: 600
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset H3_WRONG H3_WRONG_AT
check 'a clean candidate' clean_candidate "$work"
H3_LIB=$H3_LIB:$chain_build/tests
small_plan "$work" libwrong.so
PLAN=$work/plan.json run=$work/run
no_leak_search
check 'a reference' stage 2 reference_pass "$run"
check 'and its bounds' stage 2 threshold_freeze "$run"

# gate RANKS: rc, out and json of one run of the gate
gate() {
    rm -f "$run/gate.json" "$run.log"
    stage "$1" candidate_gate "$run" --watchdog 30
    rc=$?
    out=$(cat "$run.log") json=$run/gate.json
}
field() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" "$json" 2>/dev/null | head -n 1; }
# The first element of ff.net.2.weight of each of the eight blocks in bfloat16, by the scheme h3synth-v1 with seed 0.
weights=(be0c 3e64 be88 be4e bd04 be27 bdbc bb60)

# DIRECTION BLOCK BLOCK/ROWS...: where ffn_down fails, and the block that a rank alone would meet first: layout by layout (78 rows, then 90)
# forward, then layout by layout backward. On 4 ranks, two blocks each, it is another rank that meets it, ranks before it run
# ahead, ranks behind it wait, and two ranks fail without knowing of each other.
while read -r direction block places; do
    at=''
    for place in $places; do at+="${weights[${place%/*}]}/${place#*/} "; done
    for ranks in 1 2 4; do
        H3_WRONG=ffn_down:refuses_at:$direction H3_WRONG_AT=$at gate $ranks
        what="$direction, $places, $ranks ranks"
        is "$what: INVALID, written, exit 1" "$rc $(field verdict) $(field block0) $(field full_model) $(field first_failed_check) $(field first_failure)" \
            '1 INVALID passed failed full.execution ffn_down'
        like "$what: block and node are named" "$(field first_failed_detail)" "^block $block node ffn_down: operator .* failed in $direction: this one does not work"
        like "$what: and said" "$out" "block $block node ffn_down: "
        unlike "$what: nobody is left waiting, nobody complains" "$out" 'silent|lost|aborted|MPI_ABORT|has stopped'
        [ $ranks != 1 ] || cp "$json" "$work/alone.json"
        check "$what: the bytes of one rank" cmp "$json" "$work/alone.json"
    done
done <<'CASES'
forward 1 1/78 2/78 5/90
forward 4 4/78
forward 6 6/78 2/90
forward 2 2/90
backward 7 7/78
backward 1 1/78 7/90
CASES

gate 4
like 'with the right operators the same run is VALID on 4 ranks' "$rc $(tail -n 1 <<<"$out")" '^0 VALID '
tap_end
