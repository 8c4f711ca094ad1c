#!/usr/bin/env bash
# How busy each rank's device was: said by every stage that computes, kept in site.json and nowhere else; a rank that is made to wait has the smaller share.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 400
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check 'there is a candidate that the gate accepts' clean_candidate "$work/clean"
H3_LIB=$H3_LIB:$chain_build/tests
small_plan "$work" libsleeper.so
mkdir "$work/provider"
small_plan "$work/provider"
sed -i 's/"provider": "libh3_provider_cpu.so"/"provider": "libsleeper.so"/' "$work/provider/plan.json"
PLAN=$work/plan.json

# Figures of every rank of a stage, from its site.json: share, seconds waited in links, seconds and bytes handed on, a rank a line.
figures() { # figures RUN STAGE
    awk -F'[:,] *' '/"busy_share"/ { share = $2 } /"waited_seconds"/ { waited = $2 } /"hand_off_seconds"/ { time = $2 }
        /"hand_off_bytes"/ { print share, waited, time, $2 }' "$1/stages/$2/site.json"
}
# Whether awk's CONDITION holds of share[1], waited[1], time[1], bytes[1] of the first rank, [2] of the second, ... and n ranks.
holds() { # holds RUN STAGE CONDITION
    figures "$1" "$2" | tee /dev/stderr |
        awk "{ n++; share[n] = \$1; waited[n] = \$2; time[n] = \$3; bytes[n] = \$4 } END { exit !($3) }"
}
computing='reference_pass threshold_freeze generate_provider candidate_gate generate_candidate'
line='^devices  busy [0-9]+ %, [0-9]+ % of [0-9]+\.[0-9]+ s'

# --- undisturbed ---
two=$work/two one=$work/one
check 'the chain passes with 2 ranks' chain 2 "$two"
is 'every stage that computes says it once' "$(grep -cE "$line" "$two.log")" 5
is 'all but the thresholds hand on' "$(grep -cE "$line; hand-off [0-9]+\.[0-9]+ s, [0-9]+\.[0-9] (k|M)B\$" "$two.log")" 4
for stage in $computing; do
    check "$stage: two shares above 0, at most 1" holds "$two" "$stage" 'n == 2 && share[1] > 0 && share[1] <= 1 && share[2] > 0 && share[2] <= 1'
done
# Hidden states of 78 and 90 rows of 24 in FP32, in BF16 and in the repeat; their gradients come back with those of temb, which are [3,16] F32.
check 'the second rank receives hidden states' holds "$two" reference_pass 'bytes[2] == (78 + 90) * 24 * (4 + 2 + 2) && time[2] > 0'
check 'the first one gradients' holds "$two" reference_pass 'bytes[1] == bytes[2] + 2 * 3 * 16 * 4 * 3 && time[1] > 0'
check 'thresholds hand nothing on' holds "$two" threshold_freeze 'bytes[1] == 0 && bytes[2] == 0 && waited[1] == 0'
is 'a comparison computes nothing' "$(figures "$two" compare)" ''
check 'the chain passes with 1 rank' chain 1 "$one"
is 'which has nobody to hand anything to' "$(grep -cE '^devices  busy [0-9]+ % of [0-9]+\.[0-9]+ s$' "$one.log")" 5
check 'and a share too' holds "$one" reference_pass 'n == 1 && share[1] > 0 && share[1] <= 1 && bytes[1] == 0'
check 'nothing of it is in what must be the same' same_run "$one" "$two"
unlike 'nor in any stage.json' "$(cat "$two"/stages/*/stage.json)" 'busy|hand_off|devices'

# --- one rank is slow, the other waits: the gate's nap is taken in its second process again ---
no_leak_search
for slow in 0 1; do
    run=$work/slow$slow mine="share[$((slow + 1))]" other="share[$((2 - slow))]"
    for early in reference_pass threshold_freeze generate_provider; do stage 2 $early "$run"; done
    export H3_SLEEP=$slow:0:3
    check "the gate passes when rank $slow is slow" stage 2 candidate_gate "$run"
    check "rank $slow is busy, in both processes, and the other waits" holds "$run" candidate_gate "$mine > 0.6 && $other < 0.4"
    check "the generation passes when rank $slow is slow" stage 2 generate_candidate "$run"
    check "rank $slow is busy, and the other waits" holds "$run" generate_candidate "$mine > 0.6 && $other < 0.4"
    unset H3_SLEEP
    check 'the comparison passes' stage 2 compare "$run"
    check 'all bytes are those of an undisturbed run' same_run "$two" "$run"
done
PLAN=$work/provider/plan.json
H3_SLEEPER=provider H3_SLEEP=0:0:3 stage 2 reference_pass "$work/reference"
is 'the reference pass passes when rank 0 is slow' "$?" 0
check 'rank 1 waits for the first hidden state, and is not busy meanwhile' holds "$work/reference" reference_pass \
    'waited[2] > 2 && waited[1] < 2 && time[2] < 1 && share[2] < 0.4 && share[1] > 0.6'

# --- many steps: no rank waits at safe points, which here come after each. The first rank has six attentions of the two flows, the second four ---
sed -i -e 's/"points": 4/"points": 13/' -e 's/\[42, 43, 44\]/[42]/' "$PLAN"
export H3_SLEEPER=provider
check 'a reference pass' stage 2 reference_pass "$work/steps"
H3_NAP=20 stage 2 generate_provider "$work/steps"
is 'a generation whose attentions take 20 ms' "$?" 0
check 'the first rank has always something to do' holds "$work/steps" generate_provider 'share[1] > 0.85 && share[2] > 0.5'
tap_end
