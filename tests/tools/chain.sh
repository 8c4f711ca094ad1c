# Sourced, after tap.sh, by tests/system/*.sh that run whole chains of the real stage programs.
#
#   clean_candidate FOLDER        puts operator libraries that the gate accepts into H3_LIB: as built, or, from a tree with
#                                 uncommitted changes, the candidate built again in FOLDER without that mark
#   small_plan FOLDER [LIBRARY]   FOLDER/plan.json with its contract: eight blocks of nano's dimensions, two layouts, four points
#   media_plan FOLDER             the same with small decoders: 22 frames of 24x16 pixels in two tiles, 0.925 s of sound
#   stage RANKS STAGE RUN [OPTION...]   one stage of PLAN; its exit code, its output in RUN.log
#   chain RANKS RUN               the six stages, the first that fails ends it
#   digests RUN                   SHA-256 and name of every file of the run that must not depend on time, place or number of ranks
#   same_run RUN RUN              the two have the same files of this kind, with the same bytes
# shellcheck shell=bash

chain_stages='reference_pass threshold_freeze generate_provider candidate_gate generate_candidate compare'
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_btl=${OMPI_MCA_btl:-self,vader,tcp} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
chain_build=${H3_BUILD:-build}
export H3_BIN=${H3_BIN:-bin} H3_LIB=${H3_LIB:-lib/h3}
unset H3_RUN H3_PLAN H3_RANKS H3_DEVICE H3_ROOT H3_ARGS H3_RESUME

clean_candidate() {
    local sanitize=''
    [[ $(cat "$chain_build/revision.key" 2>/dev/null) == *-dirty ]] || return 0
    case $chain_build in */sanitize) sanitize=1 ;; esac
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make --no-print-directory -f mk/build.mk candidate \
        BUILD="$1/build" OUT="$1/" REVISION=tested SANITIZE=$sanitize >&2 || return
    H3_LIB=$1/lib/h3:$H3_LIB
}

small_plan() {
    local folder=$1 library=${2:-libh3_candidate_cpu.so} seven='"frames": 7, "h": 4, "w": 6'
    local levels='"timesteps": {"video": 0.25, "audio": 0.5625, "condition": 0.999}'
    mkdir -p "$folder" && cp generation-contract.json "$folder" && cat >"$folder/plan.json" <<PLAN
{"schema": "h3-plan-v1", "name": "small",
 "checkpoint": {"synthetic": {"seed": 0, "config": {
   "num_attention_heads": 2, "attention_head_dim": 16, "hidden_size": 24, "num_layers": 8, "num_refiner_layers": 2, "ffn_dim": 32,
   "in_channels": 4, "audio_in_channels": 6, "patch_size": [1, 2, 2], "text_dim": 8, "freq_dim": 8,
   "time_embed_hidden_dim": 24, "time_embed_dim": 16, "rope_freq_dim": 2}}},
 "layouts": [
  {"name": "s78", "text": 12, $seven, "audio": 9, "anchors": ["first"], "vision_rows": 3, $levels, "input_seed": 7},
  {"name": "s90", "text": 14, $seven, "audio": 11, "anchors": ["first", "last"], "vision_rows": 4, $levels, "input_seed": 8}],
 "artifacts": "full", "provider": "libh3_provider_cpu.so", "candidate": {"*": {"library": "$library"}},
 "generation": {"contract": "generation-contract.json",
  "layout": {"text": 12, $seven, "audio": 9, "anchors": ["first"], "vision_rows": 3},
  "points": 4, "seeds": [42, 43, 44], "conditioning": {"synthetic": {"seed": 7}}},
 "preview": "off"}
PLAN
}

media_plan() {
    local video audio
    video='"in_channels": 3, "out_channels": 3, "latent_channels": 4, "block_out_channels": [16, 32], "layers_per_block": 1,
  "spatial_downsample_factors": [2, 2], "temporal_downsample_factors": [2, 2], "norm_num_groups": 8, "decoder_num_layers": 2,
  "decoder_num_attention_heads": 2, "decoder_attention_head_dim": 16, "decoder_num_register_tokens": 2, "decoder_ffn_mult": 2,
  "clip_length": 17, "token_drop": 3, "latents_mean": [0.25, -0.5, 0.125, 0.0], "latents_std": [1.5, 1.25, 0.75, 1.0]'
    audio='"encoder_dim": 4, "encoder_rates": [2, 4, 4, 5, 5], "latent_dim": 8, "latent_channels": 6, "num_attention_heads": 2,
  "decoder_dim": 32, "decoder_rates": [5, 5, 4, 4, 2], "decoder_kernel_sizes": [9, 9, 8, 8, 4], "resblock_kernel_sizes": [3],
  "resblock_dilation_sizes": [[1]], "sampling_rate": 32000, "latents_mean": [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
  "latents_std": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]'
    small_plan "$@" || return
    sed -i -e '/^  "layout"/s/"audio": 9/"audio": 37/' -e 's/"name": "small"/"name": "media"/' -e '/^ "preview"/d' "$1/plan.json"
    sed -i '$d' "$1/plan.json" # its last line comes again
    cat >>"$1/plan.json" <<PLAN
  "points": 4, "seeds": [42, 43, 44], "conditioning": {"synthetic": {"seed": 7}}},
 "decoders": {
  "video": {"synthetic": {"seed": 0, "config": {$video}}, "tiling": {"tile": 16, "overlap": 8}},
  "audio": {"synthetic": {"seed": 0, "config": {$audio}}}},
 "preview": "off"}
PLAN
}

stage() {
    local ranks=$1 stage=$2 run=$3 program side=()
    shift 3
    program=h3_$stage
    case $stage in
        generate_*) program=h3_generate side=(--side "${stage#generate_}" --repeat) ;;
    esac
    mpirun -q -n "$ranks" "$H3_BIN/$program" --plan "$PLAN" --run "$run" ${side[@]+"${side[@]}"} "$@" </dev/null >>"$run.log" 2>&1
}

# Leaks are looked for in what came before this, where the build has a sanitizer: it makes the programs five times slower.
no_leak_search() { export ASAN_OPTIONS=detect_leaks=0; }

chain() {
    local ranks=$1 run=$2 stage
    for stage in $chain_stages; do
        if ! stage "$ranks" "$stage" "$run"; then
            echo "$stage with $ranks ranks:" >&2
            tail -n 5 "$run.log" >&2
            return 1
        fi
    done
}

# Host, user, job and times are in site.json, outside all hashes; the history and the logs are the site's too, and previews are
# for people.
digests() {
    (cd "$1" && find . -type f ! -name site.json ! -name .lock ! -path './logs/*' ! -path './previews/*' -print0 | LC_ALL=C sort -z |
        xargs -0 -r sha256sum)
}

same_run() {
    local one two
    one=$(digests "$1") && two=$(digests "$2") && [ -n "$one" ] || return 1
    if [ "$one" = "$two" ]; then return 0; fi
    diff <(echo "$one") <(echo "$two") >&2
    return 1
}
