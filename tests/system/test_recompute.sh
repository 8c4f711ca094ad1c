#!/usr/bin/env bash
# Artifacts under the policy "recompute": blocks behind the first keep their ends and samples, and stages 2 and 3 run the provider again.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 300
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check 'there is a candidate that the gate accepts' clean_candidate "$work/clean"
small_plan "$work/full"
small_plan "$work/again"
sed -i 's/"artifacts": "full"/"artifacts": "recompute"/' "$work/again/plan.json"
three() { # three RANKS RUN: stages 1 to 3
    local s
    for s in reference_pass threshold_freeze candidate_gate; do stage "$1" $s "$2" || { tail -n 3 "$2.log" >&2; return 1; }; done
}
PLAN=$work/full/plan.json
check 'a run with whole artifacts passes' three 2 "$work/full/run"
PLAN=$work/again/plan.json
run=$work/again/run1
check 'a run with the policy recompute passes with 1 rank' three 1 "$run"
like 'and is VALID' "$(cat "$run.log")" '^VALID +[0-9]+ checks and [0-9]+ bounds hold$'
for ranks in 2 3; do
    check "it passes with $ranks ranks" three $ranks "$work/again/run$ranks"
    check "and every file has the bytes that 1 rank gives" same_run "$run" "$work/again/run$ranks"
done

# --- what is stored ---
bounds() { sed -n '/"bounds"/,$p' "$1/thresholds.json"; }
is 'the bounds are those of whole artifacts' "$(bounds "$run")" "$(bounds "$work/full/run")"
names() { grep -o '"\(name\|digest\)": "[^"]*"' "$1/reference-manifest.json"; }
is 'so are names and digests of all tensors' "$(names "$run")" "$(names "$work/full/run")"
drift() { grep -A6 'first_drift' "$1/gate.json"; }
is 'so is the first drift' "$(drift "$run")" "$(drift "$work/full/run")"
is 'block 0 is stored whole' "$(cmp "$run/data/reference/s78/fp32/block-000.h5" "$work/full/run/data/reference/s78/fp32/block-000.h5")" ''
datasets() { h5dump -n "$run/data/reference/s78/fp32/block-003.h5" | awk '$1 == "dataset" { print $2 }' | LC_ALL=C sort; }
is 'block 3 has its output, the two gradients of its ends, and temb'"'"'s' "$(datasets | grep -v /samples/)" \
    $'/dinput.block3.temb\n/dinput.block3.x\n/dnode.block3.residual_mlp\n/node.block3.residual_mlp'
is 'and samples of everything else' "$(datasets | grep -c /samples/)" "$(($(h5dump -n "$work/full/run/data/reference/s78/fp32/block-003.h5" | grep -c dataset) - 4))"
sides() { for side in input output; do h5dump -n "$run/data/reference/s90/bf16/boundary-$side.h5"; done | awk '$1 == "dataset" { print $2 }'; }
is 'the boundaries keep samples of parameters'"'"' gradients, and nothing else' "$(sides | grep -c '^/samples/grad\.') $(sides | grep -c '^/samples/') $(sides | grep -c '^/grad')" \
    "$(sides | grep -c grad.) $(sides | grep -c grad.) 0"
like 'drift was compared at all' "$(drift "$run")" '"first_drift'
check 'h3_verify agrees' "$H3_BIN/h3_verify" run "$run"

# --- what is not reproduced is refused ---
relist() { # relist CASE FILE: size and hash as they are now, and stage.json sealed again
    local json=$1/stages/reference_pass/stage.json hash body
    hash=$(sha256sum <"$1/$2")
    sed -i "\\#\"path\": \"$2\"# { n; s/: .*/: $(stat -c %s "$1/$2"),/; n; s/: .*/: \"${hash:0:64}\"/ }" "$json"
    body=$(head -n -2 "$json" | sed '$ s/,$//')
    hash=$(printf '%s\n}\n' "$body" | sha256sum)
    printf '%s,\n  "sha256": "%s"\n}\n' "$body" "${hash:0:64}" >"$json.new" && mv "$json.new" "$json"
}
forged() { # forged NAME PATTERN TENSOR: another digest for a tensor, by somebody who can seal a stage.json
    local case=$work/forged
    rm -rf "$case" "$case.log" && cp -R "$run" "$case" && rm -rf "$case/thresholds.json" "$case/gate.json" "$case/stages/threshold_freeze" "$case/stages/candidate_gate"
    sed -i "\\#\"name\": \"$3\"#,/digest/ s/\"digest\": \"...../\"digest\": \"00000/" "$case/reference-manifest.json"
    relist "$case" reference-manifest.json
    stage 1 threshold_freeze "$case"
    like "$1" "$? $(tail -n 1 "$case.log")" "$2"
}
for tensor in s78/fp32/node.block3.attention s78/bf16/dnode.block7.q_proj s90/bf16/grad.transformer_blocks.5.ff.net.2.weight \
    s78/fp32/grad.token_refiner.refiner_blocks.1.attn.norm_q.weight s90/bf16/grad.norm_out.linear.weight; do
    forged "another digest of $tensor is found by running block and provider again" "^3 .*the provider does not reproduce tensor $tensor of reference-manifest.json" $tensor
done
forged 'a stored tensor keeps its own check' '^3 .*does not list s78/fp32/node.block3.residual_mlp' s78/fp32/node.block3.residual_mlp
rm -rf "$work/cut" && cp -R "$run" "$work/cut" && printf x >>"$work/cut/data/reference/s90/bf16/block-004.h5"
stage 2 candidate_gate "$work/cut"
like 'a block that was touched ends the gate' "$? $(tail -n 1 "$work/cut.log")" '^3 .*block-004.h5'
tap_end
