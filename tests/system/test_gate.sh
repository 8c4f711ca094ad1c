#!/usr/bin/env bash
# The gate finds what is wrong with a candidate, on tiny's dimensions: libwrong.so is the shipped candidate with one node made wrong
# (tests/candidates/wrong.c says how), and the gate must fail, name that node as first_failure, and name the check that finds it.
# timeout: 600
set -u
. tests/tools/tap.sh
build=${H3_BUILD:-build} bin=${H3_BIN:-bin} lib=${H3_LIB:-lib/h3}
export H3_LIB=$lib:$build/tests OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self
unset H3_WRONG H3_BROKEN
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Open MPI's session folders: single processes that start and end at the same time remove each other's.
export TMPDIR=$work/session1
mkdir "$work/session1" "$work/session2"

# plan FILE BLOCKS BINDINGS: tiny's dimensions, one layout of 78 rows
plan() {
    cat >"$1" <<JSON
{"schema": "h3-plan-v1", "name": "gate-test", "artifacts": "full", "provider": "libh3_provider_cpu.so", "preview": "off", "candidate": {$3},
 "checkpoint": {"synthetic": {"seed": 0, "config": {"num_attention_heads": 2, "attention_head_dim": 128, "hidden_size": 160, "num_layers": $2,
  "num_refiner_layers": 1, "ffn_dim": 320, "in_channels": 24, "audio_in_channels": 32, "patch_size": [1, 2, 2], "text_dim": 96, "freq_dim": 64,
  "time_embed_hidden_dim": 128, "time_embed_dim": 64, "rope_freq_dim": 16}}},
 "layouts": [{"name": "s78", "text": 12, "frames": 7, "h": 4, "w": 6, "audio": 9, "anchors": ["first"], "vision_rows": 3,
  "timesteps": {"video": 0.25, "audio": 0.5625, "condition": 0.999}, "input_seed": 7}]}
JSON
}
# reference NAME BLOCKS BINDINGS: a plan, and a run with its reference and thresholds
reference() {
    plan "$work/$1.json" "$2" "$3"
    "$bin/h3_reference_pass" --plan "$work/$1.json" --run "$work/$1" >&2 && "$bin/h3_threshold_freeze" --plan "$work/$1.json" --run "$work/$1" >&2
}
# gate NAME ARGUMENTS...: rc, out and json (gate.json) of one run of the gate
gate() {
    local name=$1
    shift
    rm -f "$work/$name/gate.json"
    out=$("$bin/h3_candidate_gate" --plan "$work/$name.json" --run "$work/$name" "$@" 2>&1)
    rc=$?
    json=$work/$name/gate.json
}
# field KEY: a text of gate.json, "null" when it is null
field() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" "$json" 2>/dev/null | head -n 1; }
last() { tail -n 1 <<<"$out"; }

shipped='"*": {"library": "libh3_candidate_cpu.so"}' wrong='"*": {"library": "libwrong.so"}'
check 'a reference for the shipped candidate' reference shipped 2 "$shipped"
check 'a reference for the wrong ones' reference wrong 2 "$wrong"

# --- a right candidate ---------------------------------------------------------------------------------------------------

gate shipped
allow=()
if [ "$(field dirty)" = true ]; then
    is 'a dirty candidate fails without --allow-dirty' "$rc $(last)" \
        '1 INVALID  build: operator library libh3_candidate_cpu.so was built from uncommitted sources; commit and rebuild, or use --allow-dirty'
    allow=(--allow-dirty)
    gate shipped "${allow[@]}"
    like 'with --allow-dirty it is PARTIAL' "$rc $(last)" '^0 PARTIAL .*a dirty library was allowed'
else
    like 'the shipped candidate is VALID' "$rc $(last)" '^0 VALID    [0-9]+ checks and [0-9]+ bounds hold$'
    gate shipped --allow-dirty
    like '--allow-dirty never gives VALID' "$rc $(last)" '^0 PARTIAL '
fi
is 'no first failure' "$(field first_failure) $(field first_failed_check) $(field checks_failed) $(field checks_not_run) $(field bounds_failed)" 'null null 0 0 0'
is 'every section passed' "$(field build_identity) $(field hashes) $(field block0) $(field full_model)" 'passed passed passed passed'
is 'no drift where none may be' "$(field first_repeat_drift) $(field first_batch_drift) $(field first_grad_repeat_drift) $(field first_grad_batch_drift)" \
    'null null null null'
gate shipped ${allow[@]+"${allow[@]}"}
cp "$json" "$work/whole.json"
gate shipped ${allow[@]+"${allow[@]}"}
check 'a second run gives the same gate.json' cmp "$json" "$work/whole.json"

# --- what runs -----------------------------------------------------------------------------------------------------------

gate shipped --list
is '--list names every check: 17 nodes, forward and backward' "$rc $(grep -c '^block0\.s78\.[a-z0-9_]*\.\(forward\|backward\)\.[a-z_]*$' <<<"$out")" '0 279'
is 'and nothing twice' "$(sort <<<"$out" | uniq -d)" ''
gate shipped --dry-run
like '--dry-run says what would run' "$rc $(last)" '^0 would run 280 checks over 1 layout; nothing was run$'
check 'and runs nothing' test ! -e "$json"
gate shipped --only 'block9*' ${allow[@]+"${allow[@]}"}
is '--only that matches nothing is a usage error' "$rc $out" '2 h3_candidate_gate: --only block9* matches no check; see --list'
gate shipped --only full ${allow[@]+"${allow[@]}"}
is '--only full leaves block 0 out, and does not call it passed' "$rc $(field block0) $(field full_model) $(field verdict)" '0 left out passed PARTIAL'
gate shipped --only 'block0*.norm2.*.error' ${allow[@]+"${allow[@]}"}
is '--only two checks runs those' "$rc $(field checks) $(field block0) $(field full_model) $(field verdict)" '0 2 passed left out PARTIAL'
like 'and counts those' "$out" '^stage 3 +candidate gate +2 checks, '

# --- wrong candidates ----------------------------------------------------------------------------------------------------

# NODE MUTATION DIRECTION CHECK: only checks of that kind run, but of all nodes, and the first failure must be this one.
# Inside the provider's own rounding error, by the definition of the bounds, and so not here: backward alone, the running sums of norm1 and
# norm2 (0.999 and 0.977 of their error bounds; forward the promise finds them) and normalised probabilities rounded in attention (0.98);
# forward, an inner rounding left out of swiglu, which makes it more exact than the provider.
cases='
norm1 eps forward promise
norm2 eps forward bias
q_norm eps forward bias
k_norm eps forward promise
norm1 eps backward bias
norm2 eps backward bias
q_norm eps backward bias
k_norm eps backward bias
adaln_projection scale forward bias
norm1 scale forward bias
q_proj scale forward error
k_proj scale forward bias
v_proj scale forward bias
q_norm scale forward bias
k_norm scale forward error
rope_q scale forward bias
rope_k scale forward promise
attention scale forward bias
o_proj scale forward bias
residual_attn scale forward bias
norm2 scale forward bias
ffn_gate_up scale forward bias
swiglu scale forward bias
ffn_down scale forward error
residual_mlp scale forward bias
adaln_projection scale backward bias
norm1 scale backward bias
v_proj scale backward error
k_norm scale backward bias
rope_k scale backward bias
attention scale backward bias
o_proj scale backward bias
residual_attn scale backward bias
norm2 scale backward error
ffn_gate_up scale backward bias
swiglu scale backward bias
residual_mlp scale backward bias
norm1 partial forward promise
q_proj partial forward error
k_proj partial forward error
v_proj partial forward error
q_norm partial forward error
k_norm partial forward promise
attention partial forward error
o_proj partial forward error
norm2 partial forward promise
ffn_gate_up partial forward error
ffn_down partial forward error
adaln_projection partial backward error
q_proj partial backward error
q_norm partial backward error
attention partial backward error
o_proj partial backward error
ffn_gate_up partial backward error
ffn_down partial backward error
adaln_projection extra forward error
norm1 extra forward error
q_proj extra forward error
k_proj extra forward error
v_proj extra forward error
q_norm extra forward error
attention extra forward error
o_proj extra forward error
ffn_gate_up extra forward error
swiglu extra forward error
ffn_down extra forward error
k_proj extra backward error
attention extra backward error
ffn_down extra backward error
norm2 fused forward promise
rope_q fused forward promise
residual_attn fused forward promise
residual_mlp fused forward promise
v_proj truncated forward bias
swiglu truncated forward error
ffn_down truncated backward bias
adaln_projection stale forward error
norm1 stale forward error
k_proj stale forward error
rope_q stale forward worst_row
attention stale forward error
residual_mlp stale forward repeat
o_proj stale backward error
swiglu stale backward error
k_norm stale backward repeat
swiglu unwritten forward repeat
attention unwritten backward repeat
q_proj counter forward repeat
swiglu counter forward repeat
attention counter forward repeat
adaln_projection counter backward repeat
ffn_gate_up counter backward repeat
o_proj process forward process
norm2 process backward process
adaln_projection nan forward error
q_norm nan forward promise
rope_k nan forward bias
attention nan forward error
ffn_down nan forward worst_row
v_proj nan backward error
residual_attn nan backward bias
adaln_projection fallback forward execution
attention fallback forward execution
norm2 fallback backward execution
swiglu nameless forward execution
ffn_gate_up refuses forward error
q_proj nameless backward execution
rope_q refuses forward execution
o_proj refuses backward execution
k_proj ftz forward execution
residual_mlp ftz backward execution
v_proj input forward execution
attention input backward execution
o_proj given backward execution
norm1 behind forward execution
attention behind backward execution
residual_mlp behind backward execution
k_proj workspace forward execution
swiglu saved forward execution
norm1 chunk forward error
residual_mlp chunk forward error
adaln_projection chunk backward error
norm2 chunk backward error
attention alpha forward error
attention alpha backward error
attention mask forward error
attention normalised forward error
rope_q channel forward error
rope_k sign backward error
swiglu channel forward error
norm1 dropped backward error
residual_attn dropped backward error
adaln_projection dropped backward error
q_proj dropped backward error
q_proj transposed backward error
ffn_down transposed backward worst_row
'
# The same, with every check of that node: these depend on what is beside a row, or show only in other company.
batch_cases='
q_proj rows forward batch
swiglu rows backward batch
k_norm rows forward batch
o_proj order forward batch
ffn_gate_up order_row forward batch
attention order forward batch
ffn_down behind_odd forward execution
swiglu hidden backward repeat
rope_q worn forward repeat
'

# run_cases NAME FILE: each line in a run of its own; keeps exit code, last line and gate.json
run_cases() {
    local number node what direction kind only
    while read -r number node what direction kind; do
        only="block0.*.$kind"
        [ "$kind" = batch ] && only="block0.*.$node.$direction.batch"
        case $what in behind_odd | hidden | worn) only="block0.*.$node.*" ;; esac
        H3_WRONG=$node:$what:$direction gate "$1" --only "$only" ${allow[@]+"${allow[@]}"}
        { echo "$rc"; echo "$out"; } >"$work/result.$number"
        if [ -e "$json" ]; then cp "$json" "$work/result.$number.json"; fi
    done <"$2"
}
printf '%s' "$cases$batch_cases" | grep . | awk '{ print NR, $0 }' >"$work/all"
awk 'NR % 2 == 0' "$work/all" >"$work/even"
awk 'NR % 2 == 1' "$work/all" >"$work/odd"
cp -R "$work/wrong" "$work/wrong2"
cp "$work/wrong.json" "$work/wrong2.json"
run_cases wrong "$work/odd" 2>&1 &
TMPDIR=$work/session2 run_cases wrong2 "$work/even" 2>&1
wait
while read -r number node what direction kind; do
    json=$work/result.$number.json
    wanted="1 $node block0.s78.$node.$direction.$kind INVALID"
    is "$node, $direction: $what is found by $kind" "$(head -n 1 "$work/result.$number") $(field first_failure) $(field first_failed_check) $(field verdict)" "$wanted"
    [ -e "$json" ] || sed 's/^/# /' "$work/result.$number" >&2
done <"$work/all"

# --- whole runs ----------------------------------------------------------------------------------------------------------

# whole NAME NODE:MUTATION[:DIRECTION] CHECK: nothing left out
whole() {
    H3_WRONG=$2 gate "$1" ${allow[@]+"${allow[@]}"}
    is "whole run, $2" "$rc $(field first_failure) $(field first_failed_check) $(last | cut -d' ' -f1)" "1 ${2%%:*} $3 INVALID"
}
whole wrong norm2:eps block0.s78.norm2.forward.promise
is 'later sections are not run' "$(field block0) $(field full_model)" 'failed not run'
check 'the failing case is kept' test -s "$work/wrong/cases/s78.norm2.safetensors"
like 'and the way to replay it is said' "$out" '^replay  *bin/h3_candidate_gate --case .*cases/s78\.norm2\.safetensors$'
out=$(H3_WRONG=norm2:eps "$bin/h3_candidate_gate" --case "$work/wrong/cases/s78.norm2.safetensors" 2>&1)
is 'the replay fails too' "$? $(last | cut -d' ' -f1)" '1 INVALID'
out=$("$bin/h3_candidate_gate" --case "$work/wrong/cases/s78.norm2.safetensors" 2>&1)
is 'and passes once the node is right' "$? $(last | cut -d' ' -f1)" '0 PARTIAL'
whole wrong ffn_gate_up:elsewhere full.execution
is 'block 0 passed: the fallback is in block 1' "$(field block0) $(field full_model)" 'passed failed'
like 'the block is named' "$out" 'block 1 node ffn_gate_up: fell back to '
whole wrong norm2:elsewhere_nan:forward full.s78/node.block1.norm2
check 'a binding for one node' reference one 1 "$shipped, \"swiglu\": {\"library\": \"libwrong.so\", \"operator\": \"cpu_swiglu\"}"
whole one swiglu:scale block0.s78.swiglu.forward.bias
like 'both libraries are in gate.json' "$(grep '"file"' "$json" | tr -d '\n')" 'libh3_candidate_cpu\.so.*libwrong\.so'

H3_WRONG=adaln_projection:prints:forward gate wrong ${allow[@]+"${allow[@]}"}
like 'an operator that prints changes no verdict' "$rc $(last)" '^0 (VALID|PARTIAL)'

# A library that is built anew meanwhile, and one that another rank has from elsewhere. A byte behind the end of the file changes nothing but its hash.
mkdir "$work/copy"
cp "$lib"/*.so "$build/tests/libwrong.so" "$work/copy"
H3_LIB=$work/copy H3_WRONG=norm1:rebuilt H3_WRONG_FILE=$work/copy/libwrong.so gate wrong ${allow[@]+"${allow[@]}"}
is 'a library that changes while the gate runs' "$rc $out" \
    '3 h3_candidate_gate: an operator library has changed while the gate ran: its second process loaded another file; run h3_candidate_gate again'
of_rank=("$bin/h3_candidate_gate" --plan "$work/wrong.json" --run "$work/wrong" ${allow[@]+"${allow[@]}"})
out=$(env -u OMPI_MCA_btl mpirun -q --oversubscribe -n 1 "${of_rank[@]}" : -n 1 env H3_LIB="$work/copy" "${of_rank[@]}" 2>&1)
is 'a library that another rank has otherwise' "$? $out" \
    '3 h3_candidate_gate: rank 1: an operator library is another file here than on rank 0; build it for all ranks, then run h3_candidate_gate again'
rm "$work/copy/libwrong.so"
out=$(env -u OMPI_MCA_btl timeout 60 mpirun -q --oversubscribe -n 1 "${of_rank[@]}" : -n 1 env H3_LIB="$work/copy" "${of_rank[@]}" 2>&1)
is 'a library that another rank does not have' "$? $out" \
    '3 h3_candidate_gate: rank 1: an operator library is another file here than on rank 0; build it for all ranks, then run h3_candidate_gate again'

# last_words NODE:MUTATION LINE: exit code 4, one line, no gate.json
last_words() {
    H3_WRONG=$1 gate wrong ${allow[@]+"${allow[@]}"}
    is "$1: exit code, one line" "$rc $out" "4 h3_candidate_gate: rank 0 $2"
    check "$1: no verdict" test ! -e "$json"
}
last_words v_proj:crashes 'crashed (illegal instruction), last known place v_proj (block 0); look first at the operator that runs there'
last_words norm2:leaves 'is ended by a call of exit(), last known place norm2 (block 0); an operator library must not end the process'

# --- libraries that are refused ------------------------------------------------------------------------------------------

# refused NAME CODE PATTERN: one line, this exit code
refused() { is "$1: exit code, and one line" "$rc $(grep -c . <<<"$out")" "$2 1"; like "$1: the line" "$out" "$3"; }
# refused_build NAME PATTERN: section 1 fails
refused_build() {
    is "$1" "$rc $(field build_identity) $(field hashes) $(field block0) $(field first_failed_check)" '1 failed not run not run build'
    like "$1: the line" "$(last)" "^INVALID  build: .*$2"
}
# bound NAME BINDINGS: the gate on bindings that are never reached by the reference
bound() { reference "$1" 1 "$2" 2>/dev/null && gate "$1" ${allow[@]+"${allow[@]}"}; }

check 'a reference for broken libraries' reference broken 1 "$shipped, \"norm1\": {\"library\": \"libbroken.so\"}"
for how in interface size null fields operator contract label; do
    H3_BROKEN=$how gate broken ${allow[@]+"${allow[@]}"}
    refused "a library with a wrong $how" 2 'operator library .*libbroken\.so'
done
for how in load rounding entry; do
    H3_BROKEN=$how gate broken ${allow[@]+"${allow[@]}"}
    refused_build "floating-point state changed: $how" 'libbroken\.so changed the floating-point control state.*; unavailable nodes: norm1$'
done
for how in flags fast; do
    H3_BROKEN=$how gate broken ${allow[@]+"${allow[@]}"}
    refused_build "fast math by its $how" 'libbroken\.so was built with fast math.*; unavailable nodes: norm1$'
done
H3_BROKEN=dirty gate broken
refused_build 'a dirty library' 'operator library lib[a-z0-9_]*\.so was built from uncommitted sources'
bound fastmath "$shipped, \"norm1\": {\"library\": \"libfastmath.so\"}, \"norm2\": {\"library\": \"libfastmath.so\"}"
refused_build 'a -ffast-math library' 'libfastmath\.so.*; unavailable nodes: norm1, norm2$'
bound no_symbol "$shipped, \"norm1\": {\"library\": \"libno_symbol.so\"}"
refused 'no entry point' 2 'libno_symbol\.so exports no h3_operator_library_get'
bound absent "$shipped, \"rope_q\": {\"library\": \"libabsent.so\"}"
refused_build 'no library' 'libabsent\.so is unavailable.*; unavailable nodes: rope_q$'
bound unknown "$shipped, \"rope_q\": {\"library\": \"libh3_candidate_cpu.so\", \"operator\": \"best_rope\"}"
refused 'an unknown operator' 2 'has no operator "best_rope" for node rope_q'
plan "$work/node.json" 1 "$shipped, \"rope_v\": {\"library\": \"libwrong.so\"}"
gate node --dry-run
refused 'an unknown node' 2 '"rope_v", which is no node of a block'

# The shipped sources with FAST_MATH=1, built aside so that nothing here is built again.
mkdir "$work/fast" && cp -R mk scripts include kernels "$work/fast"
fast=$(cd "$work/fast" && unset MAKEFLAGS MAKELEVEL MFLAGS SANITIZE && make -f mk/build.mk -j2 REVISION=test FAST_MATH=1 candidate 2>&1)
is 'make FAST_MATH=1 builds a candidate' "$? $(ls "$work/fast/build/fast-math/lib/h3" 2>/dev/null)" '0 libh3_candidate_cpu.so'
[ -e "$work/fast/build/fast-math/lib/h3/libh3_candidate_cpu.so" ] || echo "$fast" >&2
H3_LIB=$work/fast/build/fast-math/lib/h3:$lib gate shipped ${allow[@]+"${allow[@]}"}
refused_build 'it is refused, and every node is named' 'unavailable nodes: adaln_projection, norm1, .*residual_mlp$'
is 'by the shipped name, never by a fallback' "$(grep -c '"operator": null' "$json")" 17

tap_end
