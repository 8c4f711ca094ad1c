#!/usr/bin/env bash
# Finds the libraries and tools that the build uses and writes what it found as make variables.
#
#   scripts/detect.sh CONFIG.MK     writes CONFIG.MK and, beside it, CONFIG.txt: one line for each dependency
#
# A dependency named by its variable (MPI_HOME, HDF5_HOME, CUDA_HOME, ...) is taken from there and from nowhere else;
# without the variable pkg-config is asked. Nothing here fails: what is missing is named in CONFIG.MK (MISSING_BUILD,
# MISSING_CHECK), and the target that needs it refuses.
set -euo pipefail

[ $# = 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0" >&2; exit 2; }
config=$1
table=${config%.mk}.txt
new=$config.new.$$
trap 'rm -f "$new" "$new.txt"' EXIT
missing_build='' missing_check=''

# line NAME STATE SOURCE: one line of the table that people see
line() { printf 'config   %-9s %-9s %s\n' "$1" "$2" "$3" >>"$new.txt"; }

# set_flags PREFIX CFLAGS LIBS: third-party headers are system headers, so that they raise no warnings of ours
set_flags() { printf '%s_CFLAGS := %s\n%s_LIBS := %s\n' "$1" "${2//-I/-isystem }" "$1" "$3" >>"$new"; }

lack() { # lack NAME PURPOSE NEED PACKAGE REASON
    line "$1" missing "$5; ${2}"
    case $3 in
        build) missing_build+="${missing_build:+, }$1 ($4)" ;;
        check) missing_check+="${missing_check:+, }$1 ($4)" ;;
    esac
}

include_flags() { # include_flags FOLDER HEADER: sources name a header without its folder (cJSON.h), or with it
    [ "$1" = /usr/include ] || printf -- '-I%s ' "$1"
    [ "$(dirname "$2")" = . ] || printf -- '-I%s' "$1/$(dirname "$2")"
}

# find_library NAME PREFIX HEADER LINK 'PC...' NEED PACKAGE PURPOSE; NEED: build, check or option
find_library() {
    local name=$1 prefix=$2 header=$3 link=$4 modules=$5 need=$6 package=$7 purpose=$8
    local variable=${prefix}_HOME home module folder
    home=${!variable:-}
    if [ -n "$home" ]; then
        folder=$home/lib
        [ -d "$folder" ] || folder=$home/lib64
        if [ ! -e "$home/include/$header" ]; then
            lack "$name" "$purpose" "$need" "$package" "$variable=$home has no include/$header"
        else
            set_flags "$prefix" "$(include_flags "$home/include" "$header")" "-L$folder -Wl,-rpath,$folder $link"
            line "$name" found "$variable=$home"
        fi
        return
    fi
    for module in $modules; do
        pkg-config --exists "$module" 2>/dev/null || continue
        set_flags "$prefix" "$(pkg-config --cflags "$module")" "$(pkg-config --libs "$module")"
        line "$name" "$(pkg-config --modversion "$module")" "pkg-config $module"
        return
    done
    lack "$name" "$purpose" "$need" "$package" "set $variable or install $package"
}

find_compiler() {
    local version
    if version=$("${CC:-gcc}" -dumpfullversion 2>/dev/null || "${CC:-gcc}" -dumpversion 2>/dev/null); then
        line compiler "$version" "$(command -v "${CC:-gcc}")"
    else
        lack compiler 'compiles everything' build build-essential "no ${CC:-gcc} on PATH"
    fi
}

find_cuda() {
    local nvcc='' home=${CUDA_HOME:-} folder
    if [ -n "$home" ]; then
        [ ! -x "$home/bin/nvcc" ] || nvcc=$home/bin/nvcc
    else
        nvcc=$(command -v nvcc || true)
        [ -n "$nvcc" ] || [ ! -x /usr/local/cuda/bin/nvcc ] || nvcc=/usr/local/cuda/bin/nvcc
    fi
    if [ -z "$nvcc" ]; then
        lack CUDA 'GPU kernels' option nvidia-cuda-toolkit "${home:+CUDA_HOME=$home has no bin/nvcc; }set CUDA_HOME or install the CUDA Toolkit"
        return
    fi
    home=${home:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}
    folder=$home/lib64
    [ -d "$folder" ] || folder=$home/lib
    echo "NVCC := $nvcc" >>"$new"
    line CUDA "$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')" "$nvcc"
    CUDA_HOME=$home
    set_flags CUDA "-I$home/include" "-L$folder -Wl,-rpath,$folder -lcudart"
}

# find_cuda_library NAME PREFIX HEADER LINK PURPOSE: beside CUDA, in its own folder, or the distribution's
find_cuda_library() {
    local variable=${2}_HOME root folder
    local roots=("${!variable:-}")
    [ -n "${roots[0]}" ] || roots=("${CUDA_HOME:-}" /usr)
    for root in "${roots[@]}"; do
        if [ -z "$root" ] || [ ! -e "$root/include/$3" ]; then continue; fi
        folder=$root/lib64
        [ -d "$folder" ] || folder=$root/lib
        if [ "$root" = /usr ]; then set_flags "$2" '' "$4"; else set_flags "$2" "-I$root/include" "-L$folder -Wl,-rpath,$folder $4"; fi
        line "$1" found "$root"
        return
    done
    lack "$1" "$5" option "$1" "set $variable or install it beside CUDA"
}

# FFmpeg is five libraries that come together.
find_ffmpeg() {
    local modules=(libavformat libavcodec libswscale libswresample libavutil) home=${FFMPEG_HOME:-} folder why
    why="set FFMPEG_HOME or install ${modules[*]/%/-dev}"
    if [ -n "$home" ]; then
        folder=$home/lib
        [ -d "$folder" ] || folder=$home/lib64
        if [ -e "$home/include/libavformat/avformat.h" ] && [ -e "$home/include/libswscale/swscale.h" ]; then
            set_flags FFMPEG "-I$home/include" "-L$folder -Wl,-rpath,$folder ${modules[*]/#lib/-l}"
            line FFmpeg found "FFMPEG_HOME=$home"
            return
        fi
        why="FFMPEG_HOME=$home has no include/libavformat/avformat.h and libswscale/swscale.h"
    elif pkg-config --exists "${modules[@]}" 2>/dev/null; then
        set_flags FFMPEG "$(pkg-config --cflags "${modules[@]}")" "$(pkg-config --libs "${modules[@]}")"
        line FFmpeg "$(pkg-config --modversion libavformat)" "pkg-config ${modules[*]}"
        return
    fi
    lack FFmpeg 'previews: without it there is no bin/h3_preview' option libavformat-dev "$why"
}

find_slurm() {
    if command -v sbatch >/dev/null; then
        line Slurm found "$(command -v sbatch)"
    else
        line Slurm missing 'install slurm-client; jobs (scripts/submit.sh --local needs none)'
    fi
}

: >"$new"
: >"$new.txt"
find_compiler
find_library MPI      MPI      mpi.h          -lmpi      'ompi-c mpi-c'    build  libopenmpi-dev   'ranks'
find_library HDF5     HDF5     hdf5.h         -lhdf5     'hdf5-serial'     build  libhdf5-dev      'artifacts'
find_library cJSON    CJSON    cjson/cJSON.h  -lcjson    'libcjson'        build  libcjson-dev     'JSON'
find_library OpenSSL  OPENSSL  openssl/evp.h  -lcrypto   'libcrypto'       build  libssl-dev       'SHA-256, signatures'
find_library OpenBLAS OPENBLAS cblas.h        -lopenblas 'openblas'        build  libopenblas-dev  'provider products on CPU'
find_library cmocka   CMOCKA   cmocka.h       -lcmocka   'cmocka'          check  libcmocka-dev    'unit tests'
find_library sndfile  SNDFILE  sndfile.h      -lsndfile  'sndfile'         check  libsndfile1-dev  'second reader of sound files in tests'
find_library libpng   PNG      png.h          -lpng      'libpng'          build  libpng-dev       'frames'
find_ffmpeg
find_cuda
find_cuda_library cuBLAS CUBLAS cublas_v2.h '-lcublasLt -lcublas' 'provider products on GPUs'
find_cuda_library cuDNN  CUDNN  cudnn.h     '-lcudnn'             'attention on GPUs, of provider and video decoder'
find_cuda_library NCCL   NCCL   nccl.h      '-lnccl'              'hand-off between GPUs'
find_slurm
printf 'MISSING_BUILD := %s\nMISSING_CHECK := %s\n' "$missing_build" "$missing_check" >>"$new"
mv "$new.txt" "$table"
mv "$new" "$config"
