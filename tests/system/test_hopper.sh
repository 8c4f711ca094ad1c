#!/usr/bin/env bash
# Our products for Hopper GPUs, on an emulated one (tests/cuda/emulate_hopper.cpp): the bytes of plain loops in whatever order threads run and copies land; and with any
# one of their waits, counts or bounds taken away the emulated GPU notices.
# timeout: 480
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

# --- and with something taken away ---
variable() { sed -n "s/^$1 *:= *//p" "$build/config.mk"; }
compiler=$(variable CXX)
read -ra flags <<<"-std=c++17 -O1 -w -ffp-contract=off -Wno-psabi -DH3_EMULATE -Iinclude -Itests/cuda $(variable CUDA_CFLAGS)"
case $build in */sanitize) flags+=('-fsanitize=address,undefined') ;; esac
mapfile -t objects < <(find "$build/obj/hopper" -name '*.o')

# copy TREE: the sources of all kernels, to be changed
copy() { mkdir -p "$1" && cp -R --parents src/hopper src/base src/media kernels/candidate/cuda "$1"; }

# broken NAME PART SED: the probe with that change to a part's kernel: of the products for the video decoder, of attention, or of its gradients
broken() {
    local tree=$work/$1 file=src/hopper/matmul.cuh unit=src/media/video_matmul.cu others=() object
    case $2 in
        attention) file=src/hopper/attend.cuh unit=kernels/candidate/cuda/attention_hopper.cu ;;
        gradients) file=kernels/candidate/cuda/attention_backward_hopper.cu unit=$file ;;
    esac
    for object in "${objects[@]}"; do case $object in */"$unit.o") ;; *) others+=("$object") ;; esac done
    copy "$tree" && sed -i -E "$3" "$tree/$file" || return
    if cmp -s "$file" "$tree/$file"; then return 1; fi # the change found nothing to change
    "${compiler:-c++}" "${flags[@]}" "-I$tree/src" "-I$tree/src/hopper" -x c++ -c "$tree/$unit" -o "$tree/unit.o" &&
        "${compiler:-c++}" "${flags[@]}" "$tree/unit.o" "${others[@]}" "$build/libh3.a" -o "$tree/probe"
}

# tried NAME PART: whether the broken probe fails in at least one order, and its words; without any where it touches memory that is not its own
tried() {
    local order out failed=0
    for order in 4 3 1 2; do
        out=$(H3_EMULATE_ORDER=$order H3_EMULATE_MEMORY=edges timeout 60 "$work/$1/probe" "$2" 2>&1) || { failed=1 && break; }
    done
    echo "$failed $(tr '\n' ' ' <<<"$out")"
}

changes=(
    'early|video|s/h3_steps_wait<1>/h3_steps_wait<2>/|a place that is given back while it is multiplied|^1 .*differ'
    'unread|video|s/h3_steps_wait<0>/h3_steps_wait<1>/|a tile that is rounded before its last steps|^1 .*(steps under way|not ok)'
    'unasked|video|/h3_barrier_wait\(&m->empty/d|a place that is filled before it is given back|^1 .*(arrives once too often|not ok)'
    'taken|video|/h3_barrier_wait\(&m->taken/d|a tile that is overwritten before it is taken|^1 .*(arrives once too often|never come|not ok)'
    'filled|video|/h3_barrier_wait\(&m->filled/d|a tile that is taken before it is there|^1 .*(never come|not ok)'
    'bias|video|s/BIAS [?] STAGES [+] 1 : 1/1/|a bias that comes over one still in use|^1 .*not ok'
    'bytes|video|s/STAGE [+] BIAS : STAGE/STAGE : STAGE/|bytes that nobody expects|^1 .*more bytes than a barrier expects'
    'fence|video|/h3_steps_begin\(\);/d|steps without their fence|^1 .*before h3_steps_begin'
    'rows|video|s/left < most [?] left : most/most/|rows behind the last one|^1 +$'
    'half|video|s/column [+] p[.]second [*] i/column/|the wrong half of the weights|^1 .*not ok'
    'other|video|s/MULTIPLIERS [*] Kind::BLOCKS/MULTIPLIERS/; s/lane < Kind::BLOCKS/lane == (int)(blockIdx.x % 2)/|a place of a pair that is filled before the other block gives it back|^1 .*(differ|not ok|arrives once too often|more bytes)'
    'counts|video|s/MULTIPLIERS [*] Kind::BLOCKS/MULTIPLIERS/|a place of a pair that counts one block alone|^1 .*(not ok|arrives once too often)'
    'started|video|s/else h3_cluster_meet/else __syncthreads/|a block that is reached before it has started|^1 .*may not have started'
    'ended|video|/BLOCKS > 1\) h3_cluster_meet/d|a block that ends while it is reached|^1 .*(may still reach|has ended)'
    'leaves|video|s/^    else h3_cluster_meet.*/&\n    if (Kind::BLOCKS == 2 \&\& blockIdx.x % 2 == 1 \&\& p.rows < 300) return;/|a block that leaves when the pair has one tile|^1 .*(may still reach|has ended)'
    'both|video|s/BOTH = 3/BOTH = 1/|columns for one block of a pair|^1 .*(more bytes|never come)'
    'third|video|s/BOTH = 3/BOTH = 7/|columns for a third block|^1 .*does not have'
    'halves|video|s/% Kind::BLOCKS\) [*] OWN/% 1)/|the same half of the columns from both blocks of a pair|^1 .*not ok'
    'pairs|video|s/ROWS = matmul::ROWS [*] Kind::BLOCKS/ROWS = matmul::ROWS/; s/ROWS\) [*] Kind::BLOCKS/ROWS)/|a pair that lacks a block|^1 .*cannot be launched'
    'scores|attention|s/h3_steps_wait<1>\(\);/h3_steps_wait<2>();/|scores that are read before they are there|^1 .*not ok'
    'weights|attention|s/weights, fresh\);/fresh, weights);/|probabilities of the tile before|^1 .*not ok'
    'there|attention|/void attend_rows/,/^}/{/attend_wait\(m->values/d}|values that are multiplied before they are there|^1 .*(not ok|arrives once too often|has ended)'
    'done|attention|/h3_barrier_wait\(&ring[.]done/d|keys and values that come over some still in use|^1 .*(arrives once too often|has ended|not ok)'
    'mask|attention|s/attend_mask\(scores, w[.]keys - [^,]*, lane\)/(void)0/|keys behind the last one|^1 .*not ok'
    'order|attention|/^        attend_multiply<Kind>\(out, turn\);/d|older sums that nobody multiplies|^1 .*not ok'
    'asked|attention|/attend_wait\(m->queries/d|queries that are read before they are there|^1 .*(arrives once too often|has ended|not ok)'
    'early_queries|attention|s/= attend_fill\((m->queries), number, ([^;]*)\);/= \&\1.there[number % 2]; h3_barrier_expect(there, \2);/|queries that come over some still in use|^1 .*(arrives once too often|has ended|never come|not ok)'
    'kept_queries|attention|/void attend_rows/,/^}/{/attend_done\(m->queries/d}|queries that are never given back|^1 .*never come'
    'second_queries|attention|s/m->query\[number % 2\]\[0\]/m->query[0][0]/|queries of another part|^1 .*not ok'
    'last_values|attention|/void attend_rows/,/^}/{/^    attend_done\(m->values/d}|the last values of a part that are never given back|^1 .*never come'
    'count|attention|/void attend_rows/,/^}/s/unsigned count = .*;/unsigned count = 0;/|parts of a block that all begin with the first place|^1 .*(not ok|arrives once too often|has ended|never come)'
    'idle_count|attention|/void attend_nothing/,/^}/s/unsigned count = .*;/unsigned count = 0;/|a group without rows that begins with the first place again|^1 .*(not ok|arrives once too often|has ended|never come)'
    'idle_keys|attention|/void attend_nothing/,/^}/{/attend_done\(m->keys/d}|a group without rows that keeps the keys|^1 .*never come'
    'idle_values|attention|/void attend_nothing/,/^}/{/attend_done\(m->values/d}|a group without rows that keeps the values|^1 .*never come'
    'idle_queries|attention|/void attend_nothing/,/^}/{/attend_done\(m->queries/d}|a group without rows that keeps the queries|^1 .*never come'
    'hasty|attention|/void attend_nothing/,/^}/{/attend_wait\(m->values/d}|a group without rows that gives places back before they are there|^1 .*(arrives once too often|has ended|never come|not ok)'
    'fewer|attention|s/ [+] \(w[.]queries % attend::QUERIES > 0 [?] heads : 0\)//|queries that make no whole part|^1 .*(not ok|cannot be launched)'
    'queries|attention|s/if \(row < rows\) [*]/*/|queries behind the last one|^1 +$'
    'own|gradients|/h3_barrier_wait\(&m->own_there/d|own rows that are read before they are there|^1 .*(not ok|arrives once too often|has ended)'
    'kept|gradients|/h3_barrier_wait\(&m->own_done/d|own rows that come over some still in use|^1 .*(not ok|arrives once too often|has ended)'
    'phases|gradients|s/return phases \^.*/return phases;/|parts of a block that begin with the first phase|^1 .*(not ok|arrives once too often|has ended|never come)'
    'dots|gradients|s/h3_steps_wait<1>\(\);$/h3_steps_wait<2>();/|scores of a gradient that are read before they are there|^1 .*not ok'
    'sums|gradients|s/h3_steps_wait<1>(.*only the next scores)/h3_steps_wait<3>\1/|a tile that is given back while sums read it|^1 .*(not ok|arrives once too often|has ended)'
    'second|gradients|/wait_for_tile\(m, 1, step \+ 1,/d|a second half of a tile that is multiplied before it is there|^1 .*(not ok|arrives once too often|has ended)'
    'walked|gradients|/h3_barrier_wait\(&m->done/d|tiles that come over some still in use|^1 .*(arrives once too often|not ok|has ended)'
    'fresh|gradients|s/h3_steps_define\(ds, fresh\);$/h3_steps_define(fresh, ds);/|gradients of the tile before|^1 .*not ok'
    'masked|gradients|/attend_mask/d|keys of a gradient behind the last one|^1 .*not ok'
    'counted|gradients|s/ \+ extra\);/);/|statistics that nobody expects|^1 .*more bytes than a barrier expects'
    'idle|gradients|/^H3_DEVICE void walk_nothing/,/^}/s/h3_barrier_arrive\(&m->done.*/{}/|a group without rows that keeps the tiles|^1 .*never come'
    'rest|gradients|s/^    const unsigned parts.*keys % OWN > 0/&\&\&false/|keys that make no whole part|^1 .*(not ok|cannot be launched)'
    'padding|gradients|s/const bool inside = .*;/const bool inside = true;/|statistics of queries behind the last one|^1 +$'
    'beyond|gradients|s/, walk[.]rows, own/, OWN, own/|gradients behind the last row|^1 +$'
)
try_all() {
    local change name part rest
    for change in "$@"; do
        IFS='|' read -r name part rest <<<"$change"
        broken "$name" "$part" "${rest%%|*}" || touch "$work/$name.failed"
        tried "$name" "$part" >"$work/$name.tried" 2>/dev/null # a shell says which signal ended a probe
    done
}

# --- what the assembler makes of it: nothing in local memory, and no word of its own in the way of wgmma or setmaxnreg ---
nvcc=$(variable NVCC) video=src/media/video_matmul.cu attention=kernels/candidate/cuda/attention_hopper.cu gradients=kernels/candidate/cuda/attention_backward_hopper.cu
units=("$video" "$attention" "$gradients" kernels/candidate/cuda/gemm_hopper.cu src/media/video_attention_hopper.cu)
# complaints TREE UNIT: of one compilation
complaints() {
    "$nvcc" -std=c++17 -O2 -fmad=false -gencode arch=compute_90a,code=sm_90a -Iinclude "-I$1/src" "-I$1/src/hopper" -Xptxas -v -c "$1/$2" -o "$work/object" 2>&1 |
        sed -n -E -e 's/.*\((C75[0-9]+)\).*/\1/p' -e 's/.* ([0-9]+) bytes spill stores.*/\1 bytes spilled/p' | sort -u | xargs
}
# complained NAME UNIT FILE SED: the same of what is changed, to NAME.said
complained() { copy "$work/$1" && sed -i -E "$4" "$work/$1/$3" && complaints "$work/$1" "$2" >"$work/$1.said"; }
assemble_all() {
    local unit
    for unit in "${units[@]}"; do complaints . "$unit" >"$work/${unit##*/}.said"; done
    complained unpromised $video src/hopper/matmul.cuh 's/__launch_bounds__\(matmul::THREADS, 1\)//'
    complained unwaited $video src/hopper/matmul.cuh '/h3_steps_wait<0>/d'
    complained turning $gradients $gradients '/steps under way from one turn/s/wait<0>/wait<1>/'
    complained plain $attention src/hopper/attend.cuh 's/h3_steps_define\(weights, fresh\)/for (int i = 0; i < KEYS \/ 4; i++) weights[i] = fresh[i]/'
}

# --- where they may run ---
cat >"$work/may_run.cpp" <<'EOF'
#include <stdio.h>
#include <stdlib.h>

#include "tensor_map.cuh"

static int asked(const char *name) { return atoi(getenv(name)); }
cudaError_t cudaGetDevice(int *device) { return *device = asked("DEVICE"), cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int)
{
    *value = what == cudaDevAttrComputeCapabilityMajor ? asked("MAJOR") : what == cudaDevAttrComputeCapabilityMinor ? 0 : 132;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **found, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *result)
{
    *found = (void *)&asked;
    *result = asked("MAPS") ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
int main()
{
    const int first = hopper_processors();
    printf("%d %d\n", first, hopper_processors());
}
EOF
read -ra headers <<<"$(variable CUDA_CFLAGS)"
for built in '' -DH3_HOPPER_BUILT; do "${compiler:-c++}" -std=c++17 -w ${built:+"$built"} -Isrc/hopper "${headers[@]}" "$work/may_run.cpp" -o "$work/may_run$built"; done
may_run() { DEVICE=$2 MAJOR=$3 MAPS=$4 "$work/may_run$1" 2>&1; }
is 'a Hopper GPU has its multiprocessors' "$(may_run -DH3_HOPPER_BUILT 3 9 1)" '132 132'
is 'none in a build without sm_90a' "$(may_run '' 3 9 1)" '0 0'
is 'none on another GPU' "$(may_run -DH3_HOPPER_BUILT 0 8 1)" '0 0'
is 'none with a driver without tensor maps' "$(may_run -DH3_HOPPER_BUILT 0 9 0)" '0 0'

# --- half of that on one core, and meanwhile the kernels as they are, and the other half ---
{
    try_all "${changes[@]:0:28}"
    [ -z "$nvcc" ] || assemble_all
} &
for order in '0 host' '1 edges' '2 host' '3 edges' '4 host' '4 edges'; do
    out=$(H3_EMULATE_ORDER=${order% *} H3_EMULATE_MEMORY=${order#* } "$probe" 2>&1)
    is "order $order: every product has the bytes that it must have" "$? $(grep -c '^ok' <<<"$out") $(grep -vc '^ok' <<<"$out")" '0 44 0'
done
try_all "${changes[@]:28}"
wait

for change in "${changes[@]}"; do
    IFS='|' read -r name _ _ what how <<<"$change"
    refuse "a kernel is built with $what" [ -e "$work/$name.failed" ]
    like "$what is noticed" "$(cat "$work/$name.tried")" "$how"
done

said() { cat "$work/$1.said"; }
if [ -n "$nvcc" ]; then
    for unit in "${units[@]}"; do is "$unit: nothing spilled, nothing serialised" "$(said "${unit##*/}")" '0 bytes spilled'; done
    like 'registers that nobody promised are seen' "$(said unpromised)" C7508
    like 'accumulators that are read without a wait are seen' "$(said unwaited)" C7517
    like 'steps that are under way from one turn of a loop to the next are seen' "$(said turning)" C7514
    like 'registers of steps that come from between others are seen' "$(said plain)" C7513
else
    no_gpu 'what the assembler makes of the products (no nvcc on this machine)'
fi
tap_end
