#!/usr/bin/env bash
# Our products for Hopper GPUs, on an emulated one (tests/cuda/emulate_hopper.cpp): the bytes of plain loops in whatever order threads run and copies land; and with any
# one of their waits, counts or bounds taken away the emulated GPU notices.
# timeout: 240
set -u
. tests/tools/tap.sh
build=${H3_BUILD:-build}
probe=$build/tests/matmul_probe
if ! grep -q '^CUDA_LIBS' "$build/config.mk"; then
    no_gpu 'products for Hopper GPUs (the headers of CUDA are not on this machine)'
    tap_end
fi
check 'the probe is built' [ -x "$probe" ]
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# --- as they are ---
for order in '0 host' '1 edges' '2 host' '3 edges' '4 host' '4 edges'; do
    out=$(H3_EMULATE_ORDER=${order% *} H3_EMULATE_MEMORY=${order#* } "$probe" 2>&1)
    is "order $order: every product has the bytes that it must have" "$? $(grep -c '^ok' <<<"$out") $(grep -vc '^ok' <<<"$out")" '0 16 0'
done

# --- and with something taken away ---
variable() { sed -n "s/^$1 *:= *//p" "$build/config.mk"; }
compiler=$(variable CXX)
read -ra flags <<<"-std=c++17 -O1 -w -ffp-contract=off -Wno-psabi -DH3_EMULATE -Iinclude -Itests/cuda $(variable CUDA_CFLAGS)"
case $build in */sanitize) flags+=('-fsanitize=address,undefined') ;; esac
mapfile -t others < <(find "$build/obj/hopper" -name '*.o' ! -name 'video_matmul.cu.o')

# broken NAME SED: the probe with that change to the kernel
broken() {
    local tree=$work/$1
    mkdir -p "$tree/media" && cp -R src/hopper "$tree/hopper" && cp src/media/*.cuh src/media/video_matmul.cu src/media/video_kernels.h src/media/video_planes.h src/media/video_tiles.h "$tree/media/" &&
        cp -R src/base "$tree/base" && sed -i -E "$2" "$tree/hopper/matmul.cuh" || return
    if cmp -s src/hopper/matmul.cuh "$tree/hopper/matmul.cuh"; then return 1; fi # the change found nothing to change
    "${compiler:-c++}" "${flags[@]}" "-I$tree" -x c++ -c "$tree/media/video_matmul.cu" -o "$tree/video_matmul.o" &&
        "${compiler:-c++}" "${flags[@]}" "$tree/video_matmul.o" "${others[@]}" "$build/libh3.a" -o "$tree/probe"
}

# noticed NAME WHAT HOW: the broken probe fails in at least one order, with these words; without any where it touches memory that is not its own
noticed() {
    local order out
    for order in 4 3 1; do
        out=$(H3_EMULATE_ORDER=$order H3_EMULATE_MEMORY=edges timeout 60 "$work/$1/probe" video 2>&1) || { pass=1 && break; }
    done
    like "$2 is noticed" "${pass:-0} $(tr '\n' ' ' <<<"$out")" "$3"
    unset pass
}

changes=(
    'early|s/h3_steps_wait<1>/h3_steps_wait<2>/|a place that is given back while it is multiplied|^1 .*differ'
    'unread|s/h3_steps_wait<0>/h3_steps_wait<1>/|a tile that is rounded before its last steps|^1 .*(steps under way|not ok)'
    'unasked|/h3_barrier_wait\(&m->empty/d|a place that is filled before it is given back|^1 .*(arrives once too often|not ok)'
    'taken|/h3_barrier_wait\(&m->taken/d|a tile that is overwritten before it is taken|^1 .*(arrives once too often|not ok)'
    'filled|/h3_barrier_wait\(&m->filled/d|a tile that is taken before it is there|^1 .*(never come|not ok)'
    'bias|s/BIASES = STAGES [+] 1/BIASES = 1/|a bias that comes over one still in use|^1 .*not ok'
    'bytes|s/STAGE [+] BIAS : STAGE/STAGE : STAGE/|bytes that nobody expects|^1 .*more bytes than a barrier expects'
    'fence|/h3_steps_begin\(\);/d|steps without their fence|^1 .*before h3_steps_begin'
    'rows|s/p[.]rows - row < matmul::ROWS [?] p[.]rows - row : matmul::ROWS/matmul::ROWS/|rows behind the last one|^1 +$'
    'half|s/column [+] p[.]second, full\)/column, full)/|the wrong half of the weights|^1 .*not ok'
)
build_all() {
    local change name rest
    for change in "$@"; do
        IFS='|' read -r name rest <<<"$change"
        broken "$name" "${rest%%|*}" || touch "$work/$name.failed"
    done
}
build_all "${changes[@]:0:5}" &
build_all "${changes[@]:5}" &
wait
for change in "${changes[@]}"; do
    IFS='|' read -r name _ what how <<<"$change"
    refuse "a product is built with $what" [ -e "$work/$name.failed" ]
    noticed "$name" "$what" "$how"
done

# --- what the assembler makes of it: nothing in local memory, and no word of its own in the way of wgmma or setmaxnreg ---
nvcc=$(variable NVCC)
complaints() { # complaints FOLDER: of one compilation
    "$nvcc" -std=c++17 -O2 -fmad=false -gencode arch=compute_90a,code=sm_90a -Iinclude "-I$1" -I"$1/hopper" -Xptxas -v -c "$1/media/video_matmul.cu" -o "$work/object" 2>&1 |
        sed -n -E -e 's/.*\((C75[0-9]+)\).*/\1/p' -e 's/.* ([0-9]+) bytes spill stores.*/\1 bytes spilled/p' | sort -u | xargs
}
if [ -n "$nvcc" ]; then
    is 'four kernels, nothing spilled, nothing serialised' "$(complaints src)" '0 bytes spilled'
    for change in 's/__launch_bounds__\(matmul::THREADS, 1\)//|C7508|registers that nobody promised' '/h3_steps_wait<0>/d|C7517|accumulators that are read without a wait'; do
        IFS='|' read -r edit code what <<<"$change"
        tree=$work/$code
        mkdir -p "$tree/media" && cp -R src/hopper src/base "$tree/" && cp src/media/*.cuh src/media/*.h src/media/video_matmul.cu "$tree/media/"
        sed -i -E "$edit" "$tree/hopper/matmul.cuh"
        like "$what are seen" "$(complaints "$tree")" "$code"
    done
else
    no_gpu 'what the assembler makes of the products (no nvcc on this machine)'
fi
tap_end
