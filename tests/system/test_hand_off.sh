#!/usr/bin/env bash
# Hidden states that pass from GPU to GPU by NCCL, on an emulated GPU and NCCL (tests/cuda/emulate*.cpp): they arrive whole for any number of ranks, and
# whatever fails ends the job with exit code 4 and a line that names rank and GPU, the communicators of all ranks aborted.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 300
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
probe=$chain_build/tests/hand_off_probe
if ! { grep -q '^CUDA_LIBS' "$chain_build/config.mk" && grep -q '^NCCL_LIBS' "$chain_build/config.mk"; }; then
    no_gpu 'the hand-off between GPUs (the headers of CUDA and NCCL are not on this machine)'
    tap_end
fi
check 'the probe is built' [ -x "$probe" ]
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
limit=3
case $chain_build in */sanitize) limit=10 ;; esac # under a sanitizer even healthy ranks are silent for a while

# start CASE RANKS FAILURE MODE [RANK]: in the background
start() {
    local name=$1 ranks=$2 failure=$3 mode=$4
    shift 4
    mkdir "$work/$name"
    {
        from=$EPOCHREALTIME
        for try in 1 2; do # mpirun itself can fail to make its folder: then nothing was started, and it is asked once more
            TMPDIR=$work/$name H3_EMULATE_GPUS=${gpus:-4} H3_EMULATE_LOG=$work/$name.log H3_EMULATE_FAIL=$failure \
                mpirun -q -n "$ranks" "$probe" "$mode" "$limit" "$@" </dev/null >"$work/$name.out" 2>&1
            echo "$?" >"$work/$name.code"
            grep -q 'ORTE_ERROR_LOG.*session_dir' "$work/$name.out" && [ $try = 1 ] || break
            from=$EPOCHREALTIME
        done
        awk -v a="$from" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }' >"$work/$name.seconds"
    } &
}
code_of() { cat "$work/$1.code"; }
aborts_of() { cut -d ' ' -f 1 "$work/$1.log" 2>/dev/null | sort -u | tr '\n' ' '; }
in_time() { awk -v s="$(cat "$work/$1.seconds")" -v l="$2" 'BEGIN { exit !(s <= l) }'; }

fine() { # fine NAME CASE
    is "$1" "$(code_of "$2") $(grep -v '^hand-off\|^overlap:' "$work/$2.out")" '0 '
}
fails() { # fails NAME CASE CODE ABORTED PATTERN
    local said
    said=$(grep -v '^hand-off' "$work/$2.out")
    is "$1: exit $3" "$(code_of "$2")" "$3"
    like "$1: one line that says who" "$(wc -l <<<"$said") $said" "^1 hand_off_probe: $5"
    is "$1: aborted on ranks $4" "$(aborts_of "$2")" "$4"
    check "$1: within the watchdog's $limit s ($(cat "$work/$2.seconds") s)" in_time "$2" $((limit + 9))
}

# --- what works ---
for ranks in 1 2 4; do start "exchange$ranks" $ranks '' exchange; done
gpus=1 start shared 3 '' exchange
wait
for ranks in 1 2 4; do fine "$ranks ranks: three flows up and down, crossing, and a size that is refused" "exchange$ranks"; done
is '1 rank has nobody to hand anything' "$(grep '^hand-off' "$work/exchange1.out")" 'hand-off '
is '4 ranks use NCCL' "$(grep '^hand-off' "$work/exchange4.out")" 'hand-off from GPU to GPU by NCCL'
fine 'ranks that share a GPU exchange the same' shared
is 'through the host, and say so' "$(grep '^hand-off' "$work/shared.out")" \
    'hand-off through the host by MPI: ranks 0 and 1 share a GPU, and NCCL needs one a rank'
is 'nothing is left of the communicators' "$(find "$work" -path '*/nccl-*')" ''
start overlap 3 '' overlap
start reuse 2 '' reuse
start patience 3 '' patience
wait
for ranks in 2 4; do start "part$ranks" $ranks '' part; done
wait
for ranks in 2 4; do fine "$ranks ranks: any one stops at any point, all part, and the lines are as new" "part$ranks"; done
fine 'a tensor arrives while its sender computes' overlap
fine 'the memory of sends is used again' reuse
fine 'a rank may be slower than the watchdog, as long as it lives' patience

# --- what does not ---
gpu='[^;]*; look at the GPUs? with nvidia-smi'
start send 3 '1 ncclSend 3 6' fail
start receive 3 '1 ncclRecv 4 1' fail
start async 3 '2 ncclRecv 4 async' fail
start lost 3 '1 cudaEventQuery 40 46' fail
wait
fails 'a send fails' send 4 '0 1 2 ' "rank 1: GPU 1: NCCL failed in a send with rank 2: remote process exited$gpu"
fails 'a receive fails' receive 4 '0 1 2 ' "rank 1: GPU 1: NCCL failed in a receive with rank 0: unhandled cuda error$gpu"
fails 'an asynchronous error' async 4 '0 1 2 ' "rank 2: GPU 2: NCCL failed in earlier work with all ranks: remote$gpu"
fails 'a GPU that is lost meanwhile' lost 4 '0 1 2 ' "rank 1: GPU 1: [A-Za-z ]+: CUDA-capable device.*; look at the GPU with"
start unfinished 3 '0 ncclSend 4 hang' fail
start start 3 '1 ncclCommInitRankConfig 1 hang' fail
start nostart 3 '1 ncclCommInitRankConfig 2 2' fail
start flip 3 '1 ncclRecv 1 flip' fail
wait
fails 'a transfer that never ends' unfinished 4 '0 1 2 ' "rank 1: GPU 1: [0-9]+ bytes from the GPU of rank 0 have not come within $limit s; "
fails 'a start that never ends' start 4 '0 1 2 ' "rank 0: GPU 0: NCCL is not through with its start within $limit s; "
fails 'a start that fails' nostart 4 '0 1 2 ' "rank 1: GPU 1: NCCL failed in its start with all ranks: unhandled system error$gpu"
fails 'a link that changes bytes' flip 4 '0 1 2 ' "rank 1: GPU 1: byte 524288 of the first message from rank 2 is [0-9]+, sent was [0-9]+; "
start full 3 '1 cudaMalloc 4 2' fail
start call 3 '1 cudaMemcpyAsync 4 2' fail
start hang 3 '' hang 1
start stop 3 '1 ncclRecv 5 stop' fail
start error 4 '' error 2
wait
advice='use a smaller layout, more ranks, or a GPU that nobody else uses$'
fails 'a GPU without memory' full 4 '0 1 2 ' "rank 1: GPU 1 has too little memory: [0-9]+ bytes more are needed, 0 of [0-9]+ are free; $advice"
fails 'a call that finds no memory' call 4 '0 1 2 ' "rank 1: GPU 1 has too little memory: copy [a-z ]+: out of memory; $advice"
fails 'a rank that hangs' hang 4 '0 1 2 ' "rank 1 silent for $limit s in backward attention \(block 31\)"
fails 'another failure keeps its own code' error 3 '0 1 2 3 ' 'rank 2: block 31 is damaged; make it again'
is 'a call of NCCL that hangs: exit 4' "$(code_of stop)" 4
like 'a call of NCCL that hangs: its rank is named' "$(cat "$work/stop.out")" \
    "^hand_off_probe: rank (1 silent for $limit s|2: GPU 2: [0-9]+ bytes from the GPU of rank 1 have not come)"
check 'a call of NCCL that hangs: in time' in_time stop $((limit + 15)) # whoever holds the lock in a call that hangs is waited for
tap_end
