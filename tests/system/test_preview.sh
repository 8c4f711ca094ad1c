#!/usr/bin/env bash
# bin/h3_preview read by FFmpeg's own programs, and a machine without FFmpeg: it loses the preview and nothing else.
# Where FFmpeg is not installed only the second half can run.
# timeout: 200
set -u
. tests/tools/tap.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bin=${H3_BIN:-bin} build=${H3_BUILD:-build}
preview=$bin/h3_preview
unset FFMPEG_HOME MAKEFLAGS MAKELEVEL MFLAGS

# evidence FOLDER SIZE FRAMES SAMPLES: moving pictures and two tones, as PNG and WAV files of FFmpeg's own making
evidence() {
    mkdir -p "$1/frames"
    ffmpeg -v error -f lavfi -i "gradients=size=$2:rate=24:seed=5:speed=0.05" -frames:v "$3" -pix_fmt rgb24 -start_number 0 "$1/frames/frame_%05d.png" </dev/null &&
        ffmpeg -v error -f lavfi -i "aevalsrc=0.4*sin(2764*t)|0.3*sin(4146*t):s=32000" -af "atrim=end_sample=$4" -c:a pcm_f32le "$1/audio.wav" </dev/null
}
probe() { ffprobe -v error -select_streams "$2" -show_entries "stream=$3" -of csv=p=0 "$1"; } # probe FILE v|a FIELDS
samples() { # samples FOLDER: hashes of all samples as FFmpeg reads them
    printf 'frames %s sound %s\n' "$(ffmpeg -v error -start_number 0 -i "$1/frames/frame_%05d.png" -f rawvideo -pix_fmt rgb24 - </dev/null | sha256sum | cut -c 1-64)" \
        "$(for c in 0 1; do ffmpeg -v error -i "$1/audio.wav" -af "pan=mono|c0=c$c" -f f32le - </dev/null; done | sha256sum | cut -c 1-64)"
}
fails() { # fails NAME EXIT PATTERN ARGUMENT...: one line, no temporary, and the old file stays
    local name=$1 code=$2 pattern=$3 out
    shift 3
    echo old >"$work/kept.mp4"
    out=$("$preview" "$@" --out "$work/kept.mp4" 2>&1)
    is "$name: exit $code, one line" "$? $(wc -l <<<"$out")" "$code 1"
    like "$name: says so" "$out" "$pattern"
    is "$name: the old file stays, and no temporary" "$(cat "$work/kept.mp4") $(find "$work" -name '.tmp-*')" 'old '
}
with_sample() { # with_sample NAME BYTES: the seed's evidence with another sample
    cp -r "$seed" "$work/$1" && printf '%b' "$2" | dd of="$work/$1/audio.wav" bs=1 seek=4098 conv=notrunc status=none
}

# a library that stops its program when that opens the file $H3_TEST_STOP
stopping() {
    gcc -O2 -shared -fPIC -x c - -o "$work/stop.so" <<'C'
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    const int mode = flags & O_CREAT ? va_arg(rest, int) : 0;
    va_end(rest);
    if (getenv("H3_TEST_STOP") != NULL && strcmp(path, getenv("H3_TEST_STOP")) == 0) raise(SIGSTOP);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
C
}

with_ffmpeg() {
    local seed=$work/seed42 out wanted
    check 'evidence is made' evidence "$seed" 96x64 24 32288
    out=$("$preview" --evidence "$seed" --out "$work/a.mp4" 2>&1)
    is 'a preview is made' "$?" 0
    like 'and described' "$out" '24 frames 96x64 libx264, 32288 samples aac'
    is 'pictures: H.264, size, format, rate, count' "$(probe "$work/a.mp4" v codec_name,profile,width,height,pix_fmt,avg_frame_rate,nb_frames)" 'h264,High,96,64,yuv420p,24/1,24'
    is 'colours are tagged' "$(probe "$work/a.mp4" v color_range,color_space,color_transfer,color_primaries)" 'tv,bt709,bt709,bt709'
    is 'sound: AAC, rate, channels, every sample' "$(probe "$work/a.mp4" a codec_name,profile,sample_rate,channels,duration_ts)" 'aac,LC,32000,2,32288'
    is 'all frames can be decoded' "$(ffprobe -v error -count_frames -select_streams v -show_entries stream=nb_read_frames -of csv=p=0 "$work/a.mp4")" 24
    like 'the index comes first' "$(grep -aob -e moov -e mdat "$work/a.mp4" | head -n 1)" ':moov$'
    out=$(ffmpeg -v info -i "$work/a.mp4" -start_number 0 -framerate 24 -i "$seed/frames/frame_%05d.png" -lavfi '[0:v]format=gbrp[a];[1:v]format=gbrp[b];[a][b]psnr' -f null - </dev/null 2>&1)
    check 'the pictures are those of the evidence' awk -v psnr="$(sed -n 's/.*average:\([0-9.]*\).*/\1/p' <<<"$out")" 'BEGIN { exit !(psnr > 36) }'

    # other readers see the samples whose hashes the file carries
    is 'the comment has the hashes of the samples' "$(ffprobe -v error -show_entries format_tags=comment -of csv=p=0 "$work/a.mp4")" "$(samples "$seed")"

    # and the samples that our writers wrote
    mkdir -p "$work/again/frames"
    check 'frames and sound are written again' "$build/tests/media_probe" rewrite "$seed" "$work/again"
    is 'in which other readers see the same samples' "$(samples "$work/again")" "$(samples "$seed")"

    # PSNR, as FFmpeg's own filter counts it on the same RGB
    mkdir -p "$work/noisy/frames"
    ffmpeg -v error -start_number 0 -i "$seed/frames/frame_%05d.png" -vf 'noise=alls=12:allf=t:all_seed=7,format=rgb24' -start_number 0 "$work/noisy/frames/frame_%05d.png" </dev/null
    out=$(ffmpeg -v info -start_number 0 -i "$work/noisy/frames/frame_%05d.png" -start_number 0 -i "$seed/frames/frame_%05d.png" \
        -lavfi "[0:v]format=gbrp[a];[1:v]format=gbrp[b];[a][b]psnr=stats_file=$work/psnr" -f null - </dev/null 2>&1)
    wanted=$(sed -E 's/ mse_.*(psnr_avg:[^ ]*) .*/ \1/' "$work/psnr" && sed -nE 's/.*(average:[^ ]*) (min:[^ ]*) .*/\1 \2/p' <<<"$out")
    is 'there are that many' "$(wc -l <<<"$wanted")" 25
    is 'PSNR of every frame and of the clip is that of the psnr filter, to its last digit' "$("$build/tests/media_probe" psnr "$seed/frames" "$work/noisy/frames")" "$wanted"

    taskset -c 0 "$preview" --evidence "$seed" --out "$work/b.mp4" >/dev/null 2>&1
    check 'on one core it has the same bytes' cmp "$work/a.mp4" "$work/b.mp4"

    # pure red is (63, 102, 240) in BT.709 and (81, 90, 240) in BT.601
    mkdir -p "$work/red/frames" && cp "$seed/audio.wav" "$work/red"
    ffmpeg -v error -f lavfi -i color=red:size=64x64:rate=24,format=rgb24 -frames:v 5 -start_number 0 "$work/red/frames/frame_%05d.png" </dev/null
    "$preview" --evidence "$work/red" --out "$work/red.mp4" >/dev/null 2>&1
    out=$(ffmpeg -v error -i "$work/red.mp4" -frames:v 1 -f rawvideo -pix_fmt yuv420p - </dev/null | od -An -v -tu1 -w1 | awk '
        { plane = NR <= 4096 ? 0 : NR <= 5120 ? 1 : 2; sum[plane] += $1; count[plane]++ } END { printf "%.0f %.0f %.0f", sum[0] / count[0], sum[1] / count[1], sum[2] / count[2] }')
    like 'red is red by BT.709' "$out" '^6[234] 10[123] (239|240)$'
    is 'sound longer than the pictures is not cut' "$(probe "$work/red.mp4" a duration_ts)" 32288

    "$preview" --evidence "$seed" --out "$work/m.mp4" --encoder mpeg4 >/dev/null 2>&1
    is 'without libx264: MPEG-4' "$(probe "$work/m.mp4" v codec_name,width,height,avg_frame_rate,nb_frames)" 'mpeg4,96,64,24/1,24'
    like 'it says which encoders there are' "$("$preview" --check)" '^preview  video (libx264|mpeg4), sound aac$'

    # evidence that is not what it should be
    fails 'no evidence' 3 'cannot open the folder of frames' --evidence "$work/none"
    cp -r "$seed" "$work/gap" && rm "$work/gap/frames/frame_00003.png"
    fails 'a frame is missing' 3 'frames are missing' --evidence "$work/gap"
    cp -r "$seed" "$work/mute" && rm "$work/mute/audio.wav"
    fails 'no sound' 3 'audio.wav' --evidence "$work/mute"
    cp -r "$seed" "$work/cut" && truncate -s -3 "$work/cut/audio.wav"
    fails 'sound that is cut off' 3 'audio.wav' --evidence "$work/cut"
    with_sample nan '\0\0\300\177'
    fails 'sound that is no number' 1 'finite' --evidence "$work/nan"
    with_sample huge '\0\140\141\177'
    fails 'sound beyond all measure' 3 'huge/audio.wav: sample [0-9]+ of channel [01] is 3e\+38, and sound lies in \[-1, 1\]; the file is damaged' --evidence "$work/huge"
    with_sample loud '\0\0\310\102'
    check 'sound of 100 is shown' "$preview" --evidence "$work/loud" --out "$work/loud.mp4"
    cp -r "$seed" "$work/sizes" && cp "$work/red/frames/frame_00000.png" "$work/sizes/frames/frame_00010.png"
    fails 'a frame of another size' 3 'frame_00010.png is 64 x 64 pixels, the first frame 96 x 64' --evidence "$work/sizes"
    mkdir -p "$work/odd/frames" && cp "$seed/audio.wav" "$work/odd"
    ffmpeg -v error -f lavfi -i testsrc2=size=32x20:rate=24 -vf format=rgb24,crop=31:20:exact=1 -frames:v 2 -pix_fmt rgb24 -start_number 0 "$work/odd/frames/frame_%05d.png" </dev/null
    fails 'odd sizes' 2 '/kept.mp4: .* even sides' --evidence "$work/odd"
    cp -r "$seed" "$work/rate" && ffmpeg -v error -y -f lavfi -i aevalsrc=0.1:s=31000 -t 1 -c:a pcm_f32le "$work/rate/audio.wav" </dev/null
    fails 'a rate that AAC does not know' 2 '/kept.mp4: .* 31000' --evidence "$work/rate"
    fails 'an encoder that nobody knows' 2 'no video encoder vp9' --evidence "$seed" --encoder vp9
    mkfifo "$work/pipe"
    out=$("$preview" --evidence "$seed" --out "$work/pipe" 2>&1)
    is 'a pipe is not replaced: exit 2, one line' "$? $(wc -l <<<"$out") $(stat -c %F "$work/pipe")" '2 1 fifo'
    fails 'half of two commands' 2 'is needed; see h3_preview --help' --evidence "$seed" --check
    out=$("$preview" --evidence "$seed" --out "$work/none/x.mp4" 2>&1)
    is 'no folder for it: exit 4, one line' "$? $(wc -l <<<"$out")" '4 1'
    out=$(ulimit -f 8; "$preview" --evidence "$seed" --out "$work/kept.mp4" 2>&1)
    is 'a full disk: exit 4, the old file stays' "$? $(cat "$work/kept.mp4") $(find "$work" -name '.tmp-*')" '4 old '

    of_contract_size
    of_a_run "$seed"
}

# a seed's pictures and sound as the contract has them
of_contract_size() {
    local seed=$work/whole
    check 'evidence of the contract'"'"'s size is made' evidence "$seed" 1344x768 124 165600
    check 'its preview is made' "$preview" --evidence "$seed" --out "$work/whole.mp4"
    is '124 frames of 1344x768 at 24 a second' "$(probe "$work/whole.mp4" v width,height,avg_frame_rate,nb_frames)" '1344,768,24/1,124'
    is 'sound of 32 kHz, 2 channels, every sample' "$(probe "$work/whole.mp4" a sample_rate,channels,duration_ts)" '32000,2,165600'
    rm -r "$seed"
}

# as the jobs call it
of_a_run() {
    local run=$work/run seed out
    mkdir -p "$work/plans" && cp generation-contract.json "$work"
    for word in off if-available required; do sed "s/\"preview\": \"off\"/\"preview\": \"$word\"/" plans/smoke.json >"$work/plans/$word.json"; done
    previews() { out=$("$preview" --plan "$work/plans/$1.json" --run "$run" --side provider 2>&1); }
    mkdir -p "$run"
    previews off
    is 'off: nothing happens' "$? $out" '0 '
    previews if-available
    like 'if-available: a run without pictures is fine' "$? $out" '^0 preview  seed 42 of provider has no pictures'
    previews required
    is 'required: it fails' "$?" 3
    like 'and says what is missing' "$out" 'seed42/frames is not there, and the plan requires a preview'
    for seed in $(plan_seeds); do mkdir -p "$run/data/generate/provider" && cp -r "$1" "$run/data/generate/provider/seed$seed"; done
    previews required
    is 'with pictures it passes' "$?" 0
    is 'and every seed has its movie' "$(cd "$run/previews" && echo *)" "$(for seed in $(plan_seeds); do echo "provider-seed$seed.mp4"; done | xargs)"
    rm "$run/data/generate/provider/seed42/audio.wav"
    previews required
    is 'required: damage fails' "$?" 3
    previews if-available
    like 'if-available: damage is said, and fails no job' "$? $out" '^0 h3_preview: .*audio.wav'
    two_at_once "$1"
}
# The jobs of both sides may preview at the same time: neither takes the other's unfinished movie for one that was left behind.
two_at_once() {
    local first
    check 'a stop at the right place compiles' stopping
    cp "$1/audio.wav" "$run/data/generate/provider/seed42" && cp -r "$run/data/generate/provider" "$run/data/generate/candidate" && rm -r "$run/previews"
    H3_TEST_STOP=$run/data/generate/provider/seed42/frames/frame_00009.png LD_PRELOAD=$work/stop.so ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 \
        "$preview" --plan "$work/plans/required.json" --run "$run" --side provider >"$work/first" 2>&1 &
    first=$!
    for _ in $(seq 600); do [ "$(sed -n 's/^State:\t\(.\).*/\1/p' /proc/$first/status)" != T ] || break; sleep 0.1; done
    like 'a preview is in the middle of a movie' "$(ls -A "$run/previews")" '^\.tmp-[0-9]+-[0-9]+$'
    check 'another of the same run passes' "$preview" --plan "$work/plans/required.json" --run "$run" --side candidate
    kill -CONT $first
    check 'so does the first' wait $first
    is 'and there is every movie' "$(cd "$run/previews" && ls -A | wc -l)" $((2 * $(plan_seeds | wc -l)))
}
plan_seeds() { sed -n '/"seeds"/,/\]/p' plans/smoke.json | grep -oE '[0-9]+'; }

without_ffmpeg() {
    local out plan=$work/required.json
    out=$(FFMPEG_HOME=/nowhere scripts/detect.sh "$work/config.mk" && cat "$work/config.txt" "$work/config.mk")
    like 'the line of FFmpeg says what is lost' "$out" '^config   FFmpeg    missing   FFMPEG_HOME=/nowhere .*; previews: without it there is no bin/h3_preview$'
    unlike 'nothing else is missing for it' "$out" '^MISSING_(BUILD|CHECK) := .*FFmpeg'
    out=$(FFMPEG_HOME=/nowhere make -n -f mk/build.mk BUILD="$work/build" OUT="$work/" programs 2>&1)
    like 'the other programs are built' "$out" 'bin/h3_compare'
    unlike 'the preview is not' "$out" 'h3_preview|preview/movie'

    sed 's/"preview": "off"/"preview": "required"/' plans/smoke.json >"$plan" && cp generation-contract.json "$work"
    out=$(H3_LIB=${H3_LIB:-lib/h3} timeout 60 "$bin/h3_reference_pass" --plan "$plan" --run "$work/refused" 2>&1 </dev/null)
    is 'a plan that requires previews of nothing is refused in the first stage' "$? $([ -e "$work/refused" ] && echo begun)" '2 '
    like 'with the reason' "$out" '"preview" is "required", but nothing is decoded'

    # the jobs' own step: the plan's word decides, whether the program is absent, fails or cannot even start
    mkdir "$work/none"
    out=$(cd "$work/none" && . "$OLDPWD/jobs/common.sh" && H3_BIN=$work/none H3_PLAN=$plan H3_RUN=r h3_previews provider 2>&1)
    like 'a job whose plan requires previews fails without the program' "$? $out" '^4 jobs: the plan requires previews.*no such program'
    out=$(here=$PWD && cd "$work/none" && . "$here/jobs/common.sh" && H3_BIN=$work/none H3_PLAN=$here/plans/release.json H3_RUN=r h3_previews provider 2>&1)
    is 'one whose plan only likes them does not' "$? $out" '0 '
    printf '#!/bin/sh\nexit 127\n' >"$work/none/h3_preview" && chmod +x "$work/none/h3_preview"
    (cd "$work/none" && . "$OLDPWD/jobs/common.sh" && H3_BIN=$work/none H3_PLAN=$plan H3_RUN=r h3_previews provider >/dev/null 2>&1)
    is 'a program that does not start is an exit code of ours' "$?" 4
}

if [ -x "$preview" ] && command -v ffprobe >/dev/null; then with_ffmpeg; else echo "# no FFmpeg: only half of this test" >&2; fi
without_ffmpeg
tap_end
