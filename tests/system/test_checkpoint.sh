#!/usr/bin/env bash
# Checkpoint folders as sites keep them: elsewhere than the plan says, as links of a hub's cache, cut down to one block, and so large that hashing
# takes longer than the watchdog waits.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 300
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
. tests/tools/smoke.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
smoke_libraries "$work/lib"
one=diffusion_pytorch_model-00001-of-00002.safetensors two=diffusion_pytorch_model-00002-of-00002.safetensors
index=diffusion_pytorch_model.safetensors.index.json
cp -R tests/golden/nano/transformer "$work/checkpoint"
smoke_plan "$work/plan.json" '/"checkpoint"/,/^ },/c\ "checkpoint": {"folder": "nowhere", "repository": "some/where", "revision": "r1", "hashes": {}},'
plan=$work/plan.json run=$work/run

# run_stage STAGE [OPTION...]: rc, out (both streams)
run_stage() {
    local name=$1 program
    shift
    read -ra program < <(program_of "$name")
    out=$(timeout -k 5 120 "$H3_BIN/${program[0]}" "${program[@]:1}" --plan "$plan" --run "$run" "$@" 2>&1 </dev/null)
    rc=$?
}
says() { like "$1" "$rc $(tr '\n' '~' <<<"$out")" "$2"; }

# --- elsewhere, and as links ---
run_stage reference_pass
says 'a checkpoint that is not there: exit 3 and what to do' '^3 .*/nowhere: no such folder; .* --checkpoint DIR~'
check 'and nothing was begun' [ ! -e "$run" ]
run_stage reference_pass --checkpoint "$work/checkpoint"
says '--checkpoint says where it is' '^0 '
manifest=$run/reference-manifest.json
is 'the manifest names repository and revision' "$(grep -c '"repository": "some/where"\|"revision": "r1"' "$manifest")" 2
is 'and the digests of the twelve tensors of block 0' \
    "$(sed -n '/"block_tensors"/,/}/p' "$manifest" | grep -cE '"transformer_blocks\.0\.[a-z_.0-9]+": "[0-9a-f]{64}"')" 12
refuse 'but no place' grep -q "$work" "$manifest"
mkdir -p "$work/hub/blobs" "$work/hub/snapshots/r1"
for file in config.json $index $one $two; do
    hash=$(sha256sum <"$work/checkpoint/$file")
    cp "$work/checkpoint/$file" "$work/hub/blobs/${hash:0:64}"
    ln -s "../../blobs/${hash:0:64}" "$work/hub/snapshots/r1/$file"
done
run=$work/linked
run_stage reference_pass --checkpoint "$work/hub/snapshots/r1"
says 'a hub cache of links is a checkpoint' '^0 '
check 'with the same manifest to the byte' cmp "$manifest" "$run/reference-manifest.json"
(cd "$work/checkpoint" && sha256sum -- *) >"$work/sums"
out=$("$H3_BIN/h3_verify" checkpoint "$work/hub/snapshots/r1" --hashes "$work/sums" 2>&1)
rc=$?
says 'and verifies' '^0 .*~VALID '
run=$work/run
run_stage threshold_freeze --checkpoint "$work/hub/snapshots/r1"
says 'one stage reads the folder, another the links' '^0 '
rm "$work/hub/snapshots/r1/$two" && ln -s ../../blobs/gone "$work/hub/snapshots/r1/$two"
run_stage candidate_gate --checkpoint "$work/hub/snapshots/r1"
says 'a link to nothing: exit 3, the shard is named' "^3 .*$two: a symbolic link to a file that is not there"
run_stage candidate_gate --checkpoint /dev
says 'a folder that is no checkpoint' '^3 .*/dev/config.json'
cp "$work/plan.json" "$work/synthetic.json"
smoke_plan "$work/synthetic.json"
out=$("$H3_BIN/h3_candidate_gate" --plan "$work/synthetic.json" --dry-run --checkpoint "$work/checkpoint" 2>&1)
rc=$?
says '--checkpoint for synthetic weights is a mistake: exit 2' '^2 .*synthetic weights; leave --checkpoint out'

# --- one block ---
# part NAME: a folder with config.json, the index and the shard of block 0
part() {
    rm -rf "${work:?}/$1" && mkdir "$work/$1" && cp "$work/checkpoint/config.json" "$work/checkpoint/$index" "$work/checkpoint/$two" "$work/$1"
}
offset_of() { # offset_of TENSOR: of its last byte in the second shard
    local header length end
    length=$(od -An -tu8 -N 8 "$work/checkpoint/$two" | tr -d ' ')
    header=$(dd if="$work/checkpoint/$two" bs=1 skip=8 count="$length" status=none)
    end=$(sed "s/.*\"$1\":{[^}]*\"data_offsets\":\[[0-9]*,\([0-9]*\)\]}.*/\1/" <<<"$header")
    echo $((8 + length + end - 1))
}
dirty=()
[[ $(cat "$chain_build/revision.key" 2>/dev/null) != *-dirty ]] || dirty=(--allow-dirty)
part part
run_stage candidate_gate --only 'block0*' --checkpoint "$work/part" ${dirty[@]+"${dirty[@]}"}
says "a part of the checkpoint is enough for --only 'block0*'" '^0 .*~PARTIAL '
cp "$run/gate.json" "$work/part.json"
run_stage candidate_gate --only 'block0*' --checkpoint "$work/checkpoint" ${dirty[@]+"${dirty[@]}"}
says 'as is the whole' '^0 .*~PARTIAL '
check 'with the same gate.json' cmp "$run/gate.json" "$work/part.json"
out=$(mpirun -q -n 2 "$H3_BIN/h3_candidate_gate" --plan "$plan" --run "$run" --only 'block0*' --checkpoint "$work/part" ${dirty[@]+"${dirty[@]}"} 2>&1)
rc=$?
says 'also on two ranks' '^0 .*~PARTIAL '
check 'with the same bytes' cmp "$run/gate.json" "$work/part.json"
run_stage candidate_gate --checkpoint "$work/part" ${dirty[@]+"${dirty[@]}"}
says 'for the whole gate it is not: exit 3, the missing shard is named' "^3 .*names the shard $one, and cannot open"
run_stage candidate_gate --only full --checkpoint "$work/part" ${dirty[@]+"${dirty[@]}"}
says 'nor for the full model' "^3 .*names the shard $one, and cannot open"
{
    echo '{"metadata": {"total_size": 0}, "weight_map": {'
    grep '"transformer_blocks\.0\.' "$work/checkpoint/$index" | sed '$s/,$//'
    echo '}}'
} >"$work/part/$index"
run_stage candidate_gate --only 'block0.*.norm1.*' --checkpoint "$work/part" ${dirty[@]+"${dirty[@]}"}
says 'an index of that block alone is enough too' '^0 .*~PARTIAL '
for tensor in transformer_blocks.0.attn.to_q.weight transformer_blocks.0.norm2.weight; do
    part damaged
    flip "$work/damaged/$two" "$(offset_of $tensor)"
    before=$(sha256sum <"$run/gate.json")
    run_stage candidate_gate --only 'block0*' --checkpoint "$work/damaged" ${dirty[@]+"${dirty[@]}"}
    says "a bit of $tensor: exit 3, tensor and file are named" "^3 .*damaged/$two: ${tensor//./\\.} is not the tensor that reference-manifest\.json was made with"
    is 'and nothing is touched' "$(sha256sum <"$run/gate.json")" "$before"
done
part damaged
flip "$work/damaged/$two" "$(offset_of transformer_blocks.1.norm2.weight)"
run_stage candidate_gate --only 'block0*' --checkpoint "$work/damaged" ${dirty[@]+"${dirty[@]}"}
says 'a bit that block 0 does not read changes nothing' '^0 .*~PARTIAL '
part damaged
rm "$work/damaged/$two"
run_stage candidate_gate --only 'block0*' --checkpoint "$work/damaged"
says 'without its shard: exit 3, shard and tensor are named' "^3 .*damaged/$two is missing, the shard that has transformer_blocks\.0\."
part damaged
sed -i 's/"freq_dim": 8/"freq_dim": 6/' "$work/damaged/config.json"
run_stage candidate_gate --only 'block0*' --checkpoint "$work/damaged"
says 'another config.json: exit 3' '^3 .*config\.json has changed since reference-manifest\.json'

# --- a large one: 1.6 GB of zeros without a block on the disk, hashed in more than the watchdog's second ---
large=$work/large big=diffusion_pytorch_model.safetensors
mkdir "$large"
sed -e 's/"hidden_size": 24/"hidden_size": 48/; s/"text_dim": 8/"text_dim": 16777216/; s/"num_\(refiner_\)*layers": 2/"num_\1layers": 1/' \
    tests/golden/nano/transformer/config.json >"$large/config.json"
block() { # block PREFIX: tensors of a block, as "name dtype rows [columns]"
    printf "$1.%s\n" 'norm1.weight BF16 48' 'attn.to_q.weight BF16 32 48' 'attn.to_k.weight BF16 32 48' 'attn.to_v.weight BF16 32 48' \
        'attn.norm_q.weight BF16 16' 'attn.norm_k.weight BF16 16' 'attn.to_out.0.weight BF16 48 32' 'norm2.weight BF16 48' \
        'ff.net.0.proj.weight BF16 64 48' 'ff.net.2.weight BF16 48 32'
}
{
    printf '%s\n' 'proj_in.weight F32 48 16' 'proj_in.bias F32 48' 'audio_proj_in.weight F32 48 6' 'audio_proj_in.bias F32 48' \
        'context_embedder.weight BF16 48 16777216' 'context_embedder.bias BF16 48' 'time_embedder.linear_1.weight F32 24 8' \
        'time_embedder.linear_1.bias F32 24' 'time_embedder.linear_2.weight F32 16 24' 'time_embedder.linear_2.bias F32 16' \
        'norm_out.norm.weight BF16 48' 'norm_out.linear.weight BF16 96 16' 'norm_out.linear.bias BF16 96' 'proj_out.weight F32 16 48' \
        'proj_out.bias F32 16' 'audio_proj_out.weight F32 6 48' 'audio_proj_out.bias F32 6' 'token_refiner.final_norm.weight BF16 48' \
        'transformer_blocks.0.adaln_proj.linear.weight BF16 864 16' 'transformer_blocks.0.adaln_proj.linear.bias BF16 864'
    block token_refiner.refiner_blocks.0
    block transformer_blocks.0
} | awk '{ size = ($2 == "F32" ? 4 : 2) * $3 * (NF > 3 ? $4 : 1)
    printf "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s%s],\"data_offsets\":[%.0f,%.0f]}", (NR > 1 ? "," : "{"), $1, $2, $3, (NF > 3 ? "," $4 : ""), at, at + size
    at += size } END { printf "}" }' >"$work/header"
end=$(sed 's/.*,\([0-9]*\)\]}}$/\1/' "$work/header") length=$(stat -c %s "$work/header")
# shellcheck disable=SC2059  # an escape is what it is for
{ printf "$(printf '\\x%02x\\x%02x\\0\\0\\0\\0\\0\\0' $((length % 256)) $((length / 256)))"; cat "$work/header"; } >"$large/$big"
truncate -s $((8 + length + end)) "$large/$big"
zeros=$(sed 's/./0/g' <<<"${hash:0:64}")
smoke_plan "$work/large.json" '/"checkpoint"/,/^ },/c\ "checkpoint": {"folder": "large", "hashes": {"'$big'": "'"$zeros"'"}},'
plan=$work/large.json run=$work/large_run
export OPENSSL_ia32cap=:~0x20000000 # without the processor's own SHA-256
run_stage reference_pass --watchdog 1
says 'hashing that takes longer than the watchdog waits is no silence: the hash is what fails' "^3 .*$big: SHA-256 differs"
out=$(mpirun -q -n 1 "$H3_BIN/h3_reference_pass" --plan "$plan" --run "$run" --watchdog 1 2>&1)
rc=$?
says 'also under mpirun' "^3 .*$big: SHA-256 differs"
out=$(script -qec "$H3_BIN/h3_verify checkpoint $large" /dev/null </dev/null)
rc=$?
says 'on a terminal it shows how far it is, how fast, and how long it will take' '^0 .*hash checkpoint [0-9]+/1610 MB  [0-9.]+/s  [0-9]+ s left'
tap_end
