#!/usr/bin/env bash
# The whole chain with 1, 2, 3, 4 and 8 ranks, and with other numbers of threads: the same bytes in every deterministic file.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 600
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check 'there is a candidate that the gate accepts' clean_candidate "$work/clean"
small_plan "$work"
PLAN=$work/plan.json

# --- one rank, and what must be there ---
one=$work/one
check 'the chain passes with 1 rank' chain 1 "$one"
for stage in $chain_stages; do
    like "$stage has passed" "$(cat "$one/stages/$stage/stage.json")" '^ *"verdict": "(passed|VALID)",$'
done
no_leak_search
listed=$(digests "$one" | sed 's/^[0-9a-f]* *//')
for name in plan reference-manifest thresholds gate generate-provider generate-candidate compare; do
    like "$name.json is compared" "$listed" "^\./$name.json\$"
done
count() { grep -c "^\./data/$1/.*\.h5\$" <<<"$listed"; }
is 'two passes of 8 blocks and both boundaries in two layouts, and three seeds a side, are compared' \
    "$(count reference/s78) $(count reference/s90) $(count generate/provider) $(count generate/candidate)" '20 20 3 3'

# --- other numbers of ranks and threads ---
for ranks in 2 3 4 8; do
    check "the chain passes with $ranks ranks" chain $ranks "$work/ranks$ranks"
    check "and every file has the bytes that 1 rank gives" same_run "$one" "$work/ranks$ranks"
done
export OMP_NUM_THREADS=3
check 'the chain passes with 2 ranks of 3 threads' chain 2 "$work/threads"
check 'and every file has the bytes that 1 thread gives' same_run "$one" "$work/threads"
export OMP_NUM_THREADS=1

# --- the comparison itself notices ---
touched() { # touched FILE: a copy of the run in which one byte of that file is another
    local file=$work/copy/$1 size byte
    rm -rf "$work/copy" && cp -R "$one" "$work/copy"
    size=$(stat -c %s "$file")
    byte=$(od -An -tu1 -j $((size / 2)) -N 1 "$file")
    printf '%b' "\\0$(printf %o $((byte ^ 1)))" | dd of="$file" bs=1 seek=$((size / 2)) conv=notrunc status=none
}
for file in data/reference/s90/bf16/block-007.h5 data/generate/candidate/seed44.h5 gate.json stages/compare/stage.json; do
    touched "$file"
    refuse "one other byte in $file is noticed" same_run "$one" "$work/copy"
done
rm -rf "$work/copy" && cp -R "$one" "$work/copy" && rm "$work/copy/compare.json"
refuse 'so is a file that is not there' same_run "$one" "$work/copy"
refuse 'and a run that is not there' same_run "$work/none" "$work/none"

# --- more ranks than blocks ---
too_many() { # too_many STAGE RUN
    : >"$2.log"
    stage 9 "$1" "$2"
    like "$1 refuses 9 ranks for 8 blocks" "$? $(tr '\n' ' ' <"$2.log")" \
        '^2 h3_[a-z_]+: rank 0: 9 ranks are too many for 8 blocks; start at most 8 $'
}
too_many reference_pass "$work/many"
check 'and leaves nothing behind' [ ! -e "$work/many" ]
for stage in threshold_freeze generate_provider candidate_gate generate_candidate; do too_many $stage "$one"; done
check 'and none changes the run' same_run "$one" "$work/ranks2"
# a comparison needs no blocks
rm "$one/compare.json" "$one/stages/compare/stage.json"
check 'compare takes 9' stage 9 compare "$one"
check 'with the same bytes' same_run "$one" "$work/ranks2"
tap_end
