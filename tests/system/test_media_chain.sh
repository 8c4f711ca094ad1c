#!/usr/bin/env bash
# Generation to pictures and sound, and the comparison: the same bytes for any number of ranks and threads, also after a kill in the middle of decoding;
# what is wrong with a picture or a sound is caught and named.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 600
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check 'there is a candidate that the gate accepts' clean_candidate "$work/clean"
media_plan "$work"
PLAN=$work/plan.json

# --- one rank, and what must be there ---
one=$work/one
check 'the chain passes with 1 rank' chain 1 "$one"
no_leak_search
for side in provider candidate; do
    for seed in 42 43 44; do
        folder=$one/data/generate/$side/seed$seed
        is "$side, seed $seed: 22 frames and a sound" "$(find "$folder" -name 'frame_000[0-2][0-9].png' | wc -l) $(stat -c %s "$folder/audio.wav")" '22 236858'
    done
    is "$side: they are outputs of the stage" "$(grep -cE '"path": "data/generate/.*(png|wav)"' "$one/stages/generate_$side/stage.json")" 69
    is "$side: no state is left" "$(find "$one/data/generate/$side" -name resume)" ''
done
is 'the comparison has read them all' "$(grep -cE '"path": "data/generate/.*(png|wav)"' "$one/stages/compare/stage.json")" 138
for seed in 42 43 44; do like "seed $seed has a report of its own" "$(cat "$one/data/compare/seed$seed.json")" '"per_frame": \['; done
like 'pictures and sound are judged' "$(tr -d ' \n' <"$one/compare.json")" '"not_judged":\[\]'
like 'the reference is compared with itself and its repeat' "$(tr -d ' \n' <"$one/compare.json")" '"reference_itself":\{"identical":true.*"reference_repeat":\{[^}]*"identical":true'
said=$("$H3_BIN/h3_verify" run "$one")
like 'h3_verify decodes them again' "$said" 'pictures and sound of 6 seeds decoded and hashed'
like 'and says what they hold' "$said" 'its pictures and its sound hold every limit'
check 'a report is made' "$H3_BIN/h3_report" --run "$one"
like 'it shows them' "$(cat "$one/report.html")" 'Pictures and sound, seed by seed.*Frame by frame|Frame by frame'
rm -f "$one"/report.* "$one/junit.xml"
check 'an archive is made' scripts/archive_evidence.sh "$one" --out "$work/small.tar.zst"
check 'and one with artifacts' scripts/archive_evidence.sh "$one" --with-artifacts --out "$work/large.tar.zst"
is 'pictures and sound are only in the one with artifacts' \
    "$(tar --zstd -tf "$work/small.tar.zst" | grep -cE 'png$|wav$') $(tar --zstd -tf "$work/large.tar.zst" | grep -cE 'png$|wav$')" '0 138'

# --- other numbers of ranks and threads ---
for ranks in 2 3; do
    check "the chain passes with $ranks ranks" chain $ranks "$work/ranks$ranks"
    check "and every file has the bytes that 1 rank gives" same_run "$one" "$work/ranks$ranks"
    rm -rf "$work/ranks$ranks"
done
export OMP_NUM_THREADS=3
check 'the chain passes with 2 ranks of 3 threads' chain 2 "$work/threads"
check 'and every file has the bytes that 1 thread gives' same_run "$one" "$work/threads"
rm -rf "$work/threads"
export OMP_NUM_THREADS=1

# --- killed, and stopped, while decoding ---
# Sends itself signal $H3_TEST_SIGNAL when a file whose path ends in $H3_TEST_AT is about to get its name; with 0 the disk is full then.
cat >"$work/signal.c" <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    char link[64], path[4096];
    const char *at = getenv("H3_TEST_AT");
    snprintf(link, sizeof link, "/proc/self/fd/%d", to_folder);
    ssize_t length = readlink(link, path, 3000);
    if (length > 0 && at != NULL) {
        snprintf(path + length, sizeof path - (size_t)length, "/%s", to);
        size_t all = strlen(path), tail = strlen(at);
        const int here = all >= tail && strcmp(path + all - tail, at) == 0, number = atoi(getenv("H3_TEST_SIGNAL"));
        if (here && number != 0) kill(getpid(), number);
        if (here && number == 0) return errno = ENOSPC, -1;
    }
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
}
C
check 'a signal at the right place compiles' gcc -O2 -shared -fPIC "$work/signal.c" -o "$work/signal.so"
other=$work/other
before() { # a copy of the run before the candidate's generation
    rm -rf "$other" && cp -R "$one" "$other" && rm -rf "$other/data/generate/candidate" "$other/data/compare" "$other/compare.json" \
        "$other/generate-candidate.json" "$other/stages/compare" "$other/stages/generate_candidate"
}
generate() { "$H3_BIN/h3_generate" --side candidate --repeat --plan "$PLAN" --run "$other" "$@" </dev/null >"$work/out" 2>"$work/err"; }
signalled() { # signalled SIGNAL PATH
    (export H3_TEST_SIGNAL=$1 H3_TEST_AT=$2 LD_PRELOAD=$work/signal.so ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0; generate) 2>/dev/null
}
before
signalled 9 seed43/frames/frame_00005.png
is 'it is killed in the middle of a seed' $? 137
check 'the seed before has its record' [ -e "$other/data/generate/candidate/resume/media-seed42.json" ]
refuse 'the seed itself has none' [ -e "$other/data/generate/candidate/resume/media-seed43.json" ]
PLAN=$PLAN stage 1 compare "$other"
is 'nothing of it is accepted' $? 3
inode=$(stat -c %i "$other/data/generate/candidate/seed42/frames/frame_00000.png")
touch "$other/data/generate/candidate/seed43/frames/frame_00099.png"
check 'it is resumed' generate --resume
like 'after the last step' "$(cat "$work/out")" 'resume   3 of 3 steps are done'
like 'with one seed decoded' "$(cat "$work/out")" 'resume   1 of 3 seeds are decoded'
is 'which stays as it was' "$(stat -c %i "$other/data/generate/candidate/seed42/frames/frame_00000.png")" "$inode"
check 'the comparison passes' stage 1 compare "$other"
check 'and every file has the bytes of the run that was not killed' same_run "$one" "$other"

before
signalled 15 seed42/frames/frame_00000.png
is 'a signal to go stops it between seeds' $? 75
like 'h3_verify speaks of going on' "$("$H3_BIN/h3_verify" run "$other")" 'INVALID .*not listed by any stage .*h3_generate --resume goes on'
like 'and the program says how' "$(cat "$work/err")" '^h3_generate: stopped by a signal while decoding; run again with --resume$'
printf x >>"$other/data/generate/candidate/seed42/frames/frame_00003.png"
check 'it is resumed, with a frame that has changed meanwhile' generate --resume
refuse 'that seed is made again' grep -q 'resume   2 of 3 seeds' "$work/out"
check 'the comparison passes' stage 1 compare "$other"
check 'and every file has the bytes of the run that was not stopped' same_run "$one" "$other"

before
signalled 0 seed42/frames/frame_00005.png
is 'a full disk in the middle of a seed: exit 4' $? 4
like 'whose frame is named, and not the seed that is decoded meanwhile' "$(cat "$work/err")" '^h3_generate: cannot put in place .*seed42/frames/frame_00005.png: No space left on device; check space'
check 'it is resumed' generate --resume
check 'the comparison passes' stage 1 compare "$other"
check 'and every file has the bytes of the run that had room' same_run "$one" "$other"

before
signalled 9 seed44/frames/frame_00001.png
record=$other/data/generate/candidate/resume/media-seed43.json
sed -i 's/"samples": 29600/"samples": 29601/' "$record"
generate --resume
is 'a record that has changed is refused' $? 3
like 'with what to do' "$(cat "$work/err")" '^h3_generate: cannot resume \(run without --resume to start again\): '
like 'and named' "$(cat "$work/err")" 'media-seed43.json has not the SHA-256 that it says it has.*run without --resume$'
cp "$one/stages/compare/stage.json" "$other/data/generate/candidate/resume/state.json"
generate --resume
is 'so is a state that is another file' $? 3
like 'with what to do' "$(cat "$work/err")" '^h3_generate: cannot resume \(run without --resume to start again\): .*resume/state.json'
check 'without --resume it starts again' generate
check 'the comparison passes' stage 1 compare "$other"
check 'to the same bytes' same_run "$one" "$other"

# --- what is wrong is caught and named, and no metric is said ---
copy() { rm -rf "$work/copy" && cp -R "$one" "$work/copy" && rm -rf "$work/copy.log"; }
compare() { "$H3_BIN/h3_compare" --plan "$PLAN" --run "$work/copy" </dev/null >"$work/out" 2>"$work/err"; }
refused() { # refused NAME PATTERN
    compare
    is "$1: exit 3" $? 3
    like "$1: is named" "$(cat "$work/err")" "$2"
    is "$1: no metric is printed" "$(cat "$work/out")" ''
}
side=data/generate/candidate
copy
cp "$work/copy/$side/seed43/frames/frame_00007.png" "$work/copy/$side/seed42/frames/frame_00007.png"
refused 'a stale frame' 'seed42/frames/frame_00007.png has not the listed SHA-256'
"$H3_BIN/h3_verify" run "$work/copy" >"$work/out"
is 'h3_verify refuses it' $? 3
like 'and names it' "$(cat "$work/out")" 'seed42/frames/frame_00007.png'
copy
printf '\001' | dd of="$work/copy/$side/seed44/audio.wav" bs=1 seek=5000 conv=notrunc status=none
refused 'one sample of a sound' 'seed44/audio.wav has not the listed SHA-256'
copy
rm "$work/copy/data/generate/provider/seed42/frames/frame_00021.png"
refused 'a frame that is missing' 'seed42/frames/frame_00021.png'
copy
cp "$work/copy/$side/seed42/frames/frame_00021.png" "$work/copy/$side/seed42/frames/frame_00022.png"
"$H3_BIN/h3_verify" run "$work/copy" >"$work/out"
is 'a frame too many: h3_verify refuses it' $? 3
like 'and names it' "$(cat "$work/out")" 'frame_00022.png is not listed'

# --- limits ---
limits() { # limits NAME LIMITS: the comparison of the same generation with other limits in the plan
    mkdir -p "$work/$1" && cp generation-contract.json "$work/$1"
    sed "s/^ \"preview\"/ \"acceptance\": $2,\n&/" "$work/plan.json" >"$work/$1/plan.json"
    PLAN=$work/$1/plan.json chain 1 "$work/$1/run" 2>"$work/$1/said"
}
limits sound '{"audio_snr_db": 90}'
is 'a sound below its limit fails' $? 1
said=$(cat "$work/sound/run.log")
like 'the sound is named, with its figure and limit' "$said" 'h3_compare: the sound fails: audio_snr_db [0-9.]+ of seed 4[234], at least 90; the picture holds; see compare.json'
like 'the comparison says so' "$(tr -d ' \n' <"$work/sound/run/compare.json")" '"verdict":"failed".*"picture_ok":true,"sound_ok":false'
like 'and is sound evidence of it' "$("$H3_BIN/h3_verify" run "$work/sound/run")" 'INVALID: .* signal-to-noise ratio of the sound .* is below its limit'
limits both '{"psnr_global_db": 99, "audio_lsd_db": 0.0001}'
is 'both fail' $? 1
like 'and are named both' "$(cat "$work/both/run.log")" 'picture and sound fail: psnr_global_db .*, at least 99; audio_lsd_db .*, at most 0.0001'

# --- decoders from a folder ---
folder_plan() { # folder_plan FOLDER HASHES
    mkdir -p "$work/folder" && cp generation-contract.json "$work/folder"
    sed -e 's|^  "video": {"synthetic".*|  "video": {"folder": "'"$1"'", "hashes": '"$2"', "tiling": {"tile": 16, "overlap": 8}},|' \
        -e '/"spatial_downsample_factors"/d;/"decoder_num_attention_heads"/d;/"clip_length"/d' "$work/plan.json" >"$work/folder/plan.json"
}
from=$work/folder/run
in_folder() { # in_folder PROGRAM OPTION...
    "$H3_BIN/$1" --plan "$work/folder/plan.json" --run "$from" "${@:2}" </dev/null >"$work/out" 2>"$work/err"
}
mkdir -p "$work/site"
cp -RL tests/golden/video-vae "$work/site/vae"
folder_plan models/vae "{\"config.json\": \"$(sha256sum <"$work/site/vae/config.json" | cut -d ' ' -f 1)\"}"
in_folder h3_reference_pass
is 'decoders that are not where the plan says: exit 3' $? 3
like 'the folder is named' "$(cat "$work/err")" 'models/vae'
for name in reference_pass threshold_freeze; do check "with --decoders $name passes" in_folder "h3_$name" --decoders "$work/site"; done
check 'so does the provider' in_folder h3_generate --side provider --decoders "$work/site"
like 'its report has the file' "$(tr -d ' \n' <"$from/generate-provider.json")" "\"sha256\":\"$(sha256sum <"$work/site/vae/diffusion_pytorch_model.safetensors" | cut -d ' ' -f 1)\""
unlike 'and not its place' "$(cat "$from/generate-provider.json")" "$work"
check 'the gate passes' in_folder h3_candidate_gate --decoders "$work/site"
weights=$work/site/vae/diffusion_pytorch_model.safetensors
printf '\001' | dd of="$weights" bs=1 seek=$(($(stat -c %s "$weights") - 8)) conv=notrunc status=none
check 'the other side with another byte in a weight' in_folder h3_generate --side candidate --decoders "$work/site"
in_folder h3_compare --decoders "$work/site"
is 'is not comparable' $? 3
like 'and that is named' "$(cat "$work/err")" 'provider and candidate differ in decoders.video.shards'
is 'no metric is printed' "$(cat "$work/out")" ''
folder_plan models/vae '{"diffusion_pytorch_model.safetensors": "0000000000000000000000000000000000000000000000000000000000000000"}'
rm -rf "$from"
check 'a plan with another hash: the reference pass does not look yet' in_folder h3_reference_pass --decoders "$work/site"
in_folder h3_generate --side provider --decoders "$work/site"
is 'the generation does: exit 3' $? 3
like 'and names the file' "$(cat "$work/err")" 'vae/diffusion_pytorch_model.safetensors: SHA-256 differs'
refuse 'before it samples' [ -e "$from/data/generate" ]

# --- known before anything runs ---
early() { # early NAME CODE PATTERN SED
    mkdir -p "$work/early" && cp generation-contract.json "$work/early"
    sed "$4" "$work/plan.json" >"$work/early/plan.json"
    "$H3_BIN/h3_reference_pass" --plan "$work/early/plan.json" --run "$work/early/run" </dev/null >"$work/out" 2>"$work/err"
    is "$1: exit $2" $? "$2"
    like "$1: is named" "$(cat "$work/err")" "$3"
    refuse "$1: nothing is left behind" [ -e "$work/early/run" ]
}
early 'a decoder that is not there' 3 'nowhere' 's/^  "video": {"synthetic".*/  "video": {"folder": "nowhere", "hashes": {}},/;/"spatial_downsample_factors"/d;/"decoder_num_attention_heads"/d;/"clip_length"/d'
early 'a decoder of other latents' 2 'latent channels of audio are 7 for them and 6' 's/"latent_dim": 8, "latent_channels": 6/"latent_dim": 8, "latent_channels": 7/;s/0.1, 0.1, 0.1, 0.1, 0.1, 0.1/&, 0.1/;s/0.5, 0.5, 0.5, 0.5, 0.5, 0.5/&, 0.5/'
early 'tiles that do not fit the latents' 2 "the plan's decoders.video: tiles of 18 pixels that overlap by 8 do not fit latents of 4" 's/"tile": 16/"tile": 18/'
early 'a sound of another length' 2 'audio latents a channel .* 37 for them and 36' '/^  "layout"/s/"audio": 37/"audio": 36/'
tap_end
