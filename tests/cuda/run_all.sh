#!/usr/bin/env bash
# Everything that needs a GPU, cheapest first, from programs that are built already: make CUDA=1 check-cuda builds them and runs this.
#
#   tests/cuda/run_all.sh [--parts LIST] [--except LIST] [--log FOLDER] [--list] [--need-gpu]
#
#   --parts, --except   names with commas; without them every part runs
#   --log               where each part's output goes (build/tests/log/cuda)
#   --list              the parts, their time limits and what they need
#   --need-gpu          only says whether there is a GPU
#
# The last line is "N passed, N failed, N skipped", before it a table of the parts. A part fails when its program does, or when its time is over. Skipped is
# only what this machine cannot do: a GPU with too little memory, no compute-sanitizer. A golden that is not there is a failure.
# Exit code 0: all that ran passed, and something ran; 1: a part failed; 2: usage; 4: no GPU.
# H3_BUILD, H3_BIN, H3_LIB say where programs and libraries are, H3_GOLDEN_SHARED where the large goldens are, H3_CHECK_LIMIT a factor on the time limits.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0" >&2; exit 2; }
build=${H3_BUILD:-build} bin=${H3_BIN:-bin} lib=${H3_LIB:-lib/h3}
parts='' except='' one='' log=$build/tests/log/cuda list=0 need_gpu=0
while [ $# -gt 0 ]; do
    case $1 in
        --parts|--except|--log|--one) [ $# -gt 1 ] && [ -n "$2" ] || usage; declare "${1#--}=$2"; shift ;;
        --list) list=1 ;;
        --need-gpu) need_gpu=1 ;;
        *) usage ;;
    esac
    shift
done

# NAME LIMIT(s) MEMORY(GB of the GPU) WHAT; in order of cost
table='
device       120   1  sums, comparison, synthetic values, digests: the bytes of the host
goldens      120   1  nano, tiny, edge: every output, node and gradient
nodes        300   2  every candidate node at small sizes: CPU candidate, tensor-core model, repeats, rows in company
hopper       300  20  products and attention at the released dimensions by wgmma and by mma.sync: the same bytes; times beside the provider
media        300   4  operations of the video autoencoder and its small goldens, also by libraries
sound        120   4  the audio decoder at the released dimensions: the golden samples and the bytes of a CPU
cudnn        120   4  attention of the provider by cuDNN and in chunks
inject       120   1  CUDA errors end a program with exit code 4
memcheck     600   2  compute-sanitizer memcheck on nano, all kernels
initcheck    600   2  compute-sanitizer initcheck on nano, all kernels
racecheck    600   2  compute-sanitizer racecheck on nano, all kernels
block0       300  20  block 0 at the released dimensions, s264 and s925, and 48 golden rows of single nodes
nodes-full   600  20  every candidate node at the released dimensions, and against the provider
products     600  20  the seven products at 925 rows, beside the provider
process      300  20  the same bytes of every node from a second process
decode       300  40  one released video and keyframe against the published samples, also by libraries; times
deep         300  60  3 blocks, forward and backward
full         600  80  50 blocks, s264 and s925: provider and candidate, FP32 beside them
generation   600  80  the sampling loop of 49 evaluations, 50 blocks, s264
release      600 120  50 blocks, S = 39,230: provider and candidate
large        300 120  tensors beyond 2^31 elements
'

golden_cuda() { "$build/tests/golden_cuda" "$@"; }
nodes_cuda() { "$build/tests/nodes_cuda" "$@" "$lib/libh3_candidate_cuda.so" "$lib/libh3_candidate_cpu.so"; }
# Small sizes are enough but for the products of Hopper GPUs, every kernel runs. Our own kernels first; then whole passes, libraries' kernels included. Both run whatever the first finds, and what was found is told by kernel.
# What the tools say and what is not so is answered, not ignored (docs/qualification-h200.md has what was seen without):
# racecheck  cuDNN's generated kernels and the attention gradient's are left out, by name; nothing else is.
# initcheck  does not see all that libraries' kernels store: libpoison.so fills their outputs with NaNs first. That it would show is tried as well.
sanitized() { # sanitized TOOL
    local code=0 found options=() hopper=() poison=''
    [ "$1" != racecheck ] || options=(--kernel-name-exclude kns=cudnn_generated) hopper=(--kernel-name-exclude kns=attention_gradient_kernel)
    [ "$1" != initcheck ] || poison=$(realpath "$build/tests/libpoison.so")
    "$H3_COMPUTE_SANITIZER" --tool "$1" --error-exitcode 9 "$build/tests/nodes_cuda" --dims nano --rows 67 "$lib/libh3_candidate_cuda.so" "$lib/libh3_candidate_cpu.so" || code=$?
    echo "sanitized  $1  candidate nodes: exit $code"
    "$H3_COMPUTE_SANITIZER" --tool "$1" --error-exitcode 9 "${hopper[@]}" "$build/tests/nodes_cuda" --dims released --rows 130 --node q_proj,attention --quick --digests "$log/$1.digests" \
        "$lib/libh3_candidate_cuda.so" "$lib/libh3_candidate_cpu.so" || code=$?
    echo "sanitized  $1  its kernels for Hopper GPUs: exit $code"
    LD_PRELOAD=$poison "$H3_COMPUTE_SANITIZER" --tool "$1" --error-exitcode 9 --print-limit 10000 "${options[@]}" "$build/tests/golden_cuda" --cases nano >"$log/$1.passes.log" 2>&1 || code=$?
    found=$(grep -oE ' at [A-Za-z_][^+]*\+0x' "$log/$1.passes.log" | sort | uniq -c | sort -rn | head -n 12)
    [ -z "$found" ] || printf 'kernels in what was found:\n%s\n' "$found"
    if [ -n "$poison" ]; then poison_shows || code=1; fi
    tail -n 3 "$log/$1.passes.log"
    return $code
}
# The passes' outputs were NaNs before, and one that a library leaves as it is fails a golden.
poison_shows() {
    local code=0
    grep -q '^poison: outputs of [1-9]' "$log/initcheck.passes.log" || { echo 'FAILED  no output of a library was filled'; return 1; }
    LD_PRELOAD=$poison H3_POISON_SKIP=40 golden_cuda --cases nano --modes bf16 >"$log/initcheck.poison.log" 2>&1 || code=$?
    [ "$code $(grep -c '^goldens on cuda: FAILED' "$log/initcheck.poison.log")" != '1 1' ] || return 0
    echo "FAILED  a product was left out, and the goldens did not show it (exit $code)"
    return 1
}
part_goldens() { golden_cuda --cases nano,tiny,edge; }
part_nodes() { nodes_cuda --dims nano,tiny,odd,wide,d32,d64; }
# With --quick no node's result is judged but by its bytes; which kernels ran stands in its line.
part_hopper() {
    local way rows nodes=q_proj,k_proj,v_proj,o_proj,ffn,attention
    for rows in 264 925 3160; do
        for way in mma wgmma; do
            H3_CANDIDATE_PRODUCTS=$way nodes_cuda --dims released --rows "$rows" --node "$nodes" --quick --time 5 --provider "$lib/libh3_provider_cuda.so" --digests "$log/hopper.$rows.$way" >"$log/hopper.$rows.$way.log" || return
            grep OK "$log/hopper.$rows.$way.log"
        done
        [ -s "$log/hopper.$rows.mma" ] || { echo 'no digests were written'; return 1; }
        cmp "$log/hopper.$rows.mma" "$log/hopper.$rows.wgmma" || return
        grep -q ' linear_wgmma.* linear_gradient_dx_wgmma.*_dw_wgmma' "$log/hopper.$rows.wgmma.log" && grep -q ' attention_wgmma.* attention_gradient_wgmma' "$log/hopper.$rows.wgmma.log" ||
            { echo 'nothing ran by wgmma'; return 1; }
        if grep -q wgmma "$log/hopper.$rows.mma.log"; then echo 'wgmma ran where mma.sync was asked for'; return 1; fi
    done
    echo "$(cat "$log"/hopper.*.wgmma | wc -l) digests are the same by wgmma and by mma.sync"
}
part_device() { "$build/tests/device_cuda"; }
part_media() { "$build/tests/video_cuda" operations golden && H3_VIDEO_KERNELS=library "$build/tests/video_cuda" golden; }
part_sound() { "$build/tests/audio_cuda" --host-too; }
part_cudnn() { "$build/tests/attention_cudnn" "$lib/libh3_provider_cuda.so"; }
part_decode() { "$build/tests/video_cuda" large released && H3_VIDEO_KERNELS=library "$build/tests/video_cuda" released; }
part_inject() { tests/cuda/inject.sh "$bin" "$(realpath "$build/tests/libinject.so")"; }
part_memcheck() { sanitized memcheck; }
part_initcheck() { sanitized initcheck; }
part_racecheck() { sanitized racecheck; }
part_block0() { golden_cuda --cases rows48,s264,s925; }
part_nodes-full() { nodes_cuda --dims released --provider "$lib/libh3_provider_cuda.so"; }
part_products() { nodes_cuda --dims released --rows 925 --node adaln,q_proj,k_proj,v_proj,o_proj,ffn --provider "$lib/libh3_provider_cuda.so"; }
part_process() {
    local try
    for try in 1 2; do nodes_cuda --dims nano,tiny,released --quick --digests "$log/digests.$try" || return; done
    [ -s "$log/digests.1" ] || { echo 'no digests were written'; return 1; }
    cmp "$log/digests.1" "$log/digests.2" && echo "$(wc -l <"$log/digests.1") digests are the same in a second process"
}
part_deep() { golden_cuda --cases deep; }
part_full() { golden_cuda --cases full-s264,full-s925; }
part_generation() { golden_cuda --cases generation; }
part_release() { golden_cuda --cases full-release; }
part_large() { nodes_cuda --dims nano --node norm1/plain --large; }

listed() { [[ ,$2, == *,$1,* ]]; }
if [ -n "$one" ]; then "part_$one"; exit; fi # this script calls itself, so that a part can be timed out as a whole

all=$(awk 'NF { printf "%s%s", comma, $1; comma = "," }' <<<"$table")
for name in ${parts//,/ } ${except//,/ }; do
    listed "$name" "$all" || { echo "check-cuda: no part $name; there are ${all//,/ }" >&2; exit 2; }
done
if [ $list = 1 ]; then
    awk 'NF { what = $0; sub(/^[^ ]+ +[^ ]+ +[^ ]+ +/, "", what); printf "%-11s %4d s  %4d GB  %s\n", $1, $2, $3, what }' <<<"$table"
    exit
fi

# --- what there is ---

no_gpu() { echo "check-cuda: no GPU here ($1); run it on a machine with one" >&2; exit 4; }
if [ $need_gpu = 1 ]; then # before anything is built
    nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null || no_gpu 'no NVIDIA device'
    exit 0
fi
for program in golden_cuda nodes_cuda device_cuda video_cuda audio_cuda attention_cudnn; do
    [ -x "$build/tests/$program" ] || { echo "check-cuda: $build/tests/$program is not there; build it with make CUDA=1 check-cuda" >&2; exit 4; }
done
if [ -z "${H3_GOLDEN_SHARED:-}" ] && [ -d ../shared/golden ]; then export H3_GOLDEN_SHARED=../shared/golden; fi
export H3_LIB=$lib
probe=$(golden_cuda --probe 2>&1) || no_gpu "${probe#golden_cuda: }"
memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | awk 'NR == 1 && $1 > 0 { printf "%d", $1 * 1.048576 / 1000 }')
export H3_COMPUTE_SANITIZER=${H3_COMPUTE_SANITIZER:-$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)}
mkdir -p "$log" && log=$(realpath "$log") || exit 4

# why_not NAME MEMORY: prints why this machine cannot run the part
why_not() {
    if [ -n "$memory" ] && [ "$memory" -lt "$2" ]; then echo "needs a GPU of $2 GB, this one has $memory"
    elif [[ $1 == *check ]] && [ -z "$H3_COMPUTE_SANITIZER" ]; then echo 'no compute-sanitizer; put it on PATH'
    fi
}

# --- running ---

rows='' passed=0 failed=0 skipped=0
row() { # row NAME STATE SECONDS TEXT
    local line
    line=$(printf '%-11s %-8s %7.1f s  %.150s' "$1" "$2" "$3" "$4")
    rows+=$line$'\n'
    echo "$line"
}
run_part() { # run_part NAME LIMIT
    local start=$EPOCHREALTIME code limit text seconds
    limit=$(awk -v a="$2" -v b="${H3_CHECK_LIMIT:-1}" 'BEGIN { limit = int(a * b + 0.5); print limit < 1 ? 1 : limit }')
    timeout --kill-after=10 "$limit" tests/cuda/run_all.sh --one "$1" --log "$log" >"$log/$1.log" 2>&1 </dev/null
    code=$?
    seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    text=$(grep -v '^[[:space:]]*$' "$log/$1.log" | tail -n 1)
    if [ $code = 0 ] && [ -n "$text" ]; then
        passed=$((passed + 1))
        row "$1" passed "$seconds" "$text"
    elif [ $code = 0 ]; then
        failed=$((failed + 1))
        row "$1" FAILED "$seconds" "it said nothing; log: $log/$1.log"
    else
        failed=$((failed + 1))
        if [ $code = 124 ] || awk -v a="$seconds" -v b="$limit" 'BEGIN { exit !(a >= b) }'; then text="still running after $limit s"; else text="exit $code: $text"; fi
        row "$1" FAILED "$seconds" "$text"
        grep -E 'FAIL|ERROR|differs' "$log/$1.log" | head -n 8 | cut -c -200 | sed 's/^/    /'
        echo "    log  $log/$1.log"
    fi
}

echo "check-cuda  $probe${memory:+, $memory GB}; logs in $log"
while read -r name limit gigabytes _; do
    [ -n "$name" ] || continue
    if { [ -n "$parts" ] && ! listed "$name" "$parts"; } || listed "$name" "$except"; then continue; fi
    reason=$(why_not "$name" "$gigabytes")
    if [ -n "$reason" ]; then
        skipped=$((skipped + 1))
        row "$name" skipped 0 "$reason"
    else
        run_part "$name" "$limit"
    fi
done <<<"$table"

printf '\n%s' "$rows"
summary="$passed passed, $failed failed, $skipped skipped"
echo "$summary" >"$log/summary"
echo "$summary"
[ $failed = 0 ] && [ $passed -gt 0 ]
