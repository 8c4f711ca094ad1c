#!/usr/bin/env bash
# Installs what the distribution's packages bring and this machine lacks (Debian 12, Ubuntu 24.04).
#
#   scripts/deps.sh            installs as root or through sudo, else prints the one command and fails
#   scripts/deps.sh --list     prints the packages
#   scripts/deps.sh --dry-run  says what it would install
#   scripts/deps.sh --previews installs FFmpeg, for bin/h3_preview and its tests; where that cannot be, it says so and does not fail
#
# Where packages cannot be installed (no apt, no rights) but everything that the build needs is found by pkg-config or by
# the usual variables (MPI_HOME, HDF5_HOME, ...), that is good too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
    build-essential pkg-config                          # gcc, make, headers
    openmpi-bin libopenmpi-dev                          # ranks
    libhdf5-dev hdf5-tools                              # artifacts
    libcjson-dev libssl-dev openssl libpng-dev zstd     # JSON, digests and signatures, frames, archives
    libopenblas-dev                                     # provider products on CPU
    libcmocka-dev libsndfile1-dev                       # unit tests, their second reader of sound files
    slurmctld slurmd slurm-client munge                 # the tests of jobs/ start a Slurm of their own
)

# FFmpeg is large, and only previews need it.
previews=(ffmpeg libavformat-dev libavcodec-dev libswscale-dev libswresample-dev libavutil-dev)

optional=0
say() { printf 'deps     %s\n' "$*"; }
die() {
    if [ $optional = 1 ]; then say "no previews: $*"; exit 0; fi
    say "$@" >&2
    exit 4
}

mode=install
case ${1:-} in
    '') ;;
    --list) printf '%s\n' "${packages[@]}"; exit ;;
    --dry-run) mode=dry-run ;;
    --previews) packages=("${previews[@]}") optional=1 ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0" >&2; exit 2 ;;
esac

missing=()
find_missing() {
    local installed package
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^installed //p') || true  # unknown packages
    missing=()
    for package in "${packages[@]}"; do
        [[ $'\n'$installed$'\n' == *$'\n'"$package"$'\n'* ]] || missing+=("$package")
    done
}

found_without_packages() { # everything that the build needs is there, from wherever
    local folder result=1
    folder=$(mktemp -d)
    scripts/detect.sh "$folder/config.mk"
    if [ $optional = 1 ]; then
        grep -q '^FFMPEG_LIBS := ' "$folder/config.mk" && result=0
    else
        grep -qx 'MISSING_BUILD := ' "$folder/config.mk" && grep -qx 'MISSING_CHECK := ' "$folder/config.mk" && result=0
    fi
    rm -rf "$folder"
    return $result
}

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    find_missing
    if [ ${#missing[@]} = 0 ]; then
        say "all present (${#packages[@]} packages)"
        exit
    fi
else
    ! found_without_packages || { say 'no apt here; everything the build needs is found'; exit; }
    die "no apt here: install the equivalents of ${packages[*]}, or name their folders (MPI_HOME, HDF5_HOME, ...; see 'make config')"
fi

as_root=()
install_command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" != 0 ]; then
    if sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    elif found_without_packages; then
        say "not installed, and not needed for the build: ${missing[*]}"
        exit
    else
        say "missing: ${missing[*]}" >&2
        die "no rights to install them; have this run: sudo sh -c '$install_command'"
    fi
fi
if [ $mode = dry-run ]; then
    say "would run: ${as_root[*]:+${as_root[*]} }sh -c '$install_command'"
    exit
fi

mkdir -p build
log=build/deps.log
: >"$log"
apt() {
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1
}
install() { apt install -y --no-install-recommends "${missing[@]}"; }

say "installing ${#missing[@]} packages: ${missing[*]}"
lists=(/var/lib/apt/lists/*Packages*)
if [ ! -e "${lists[0]}" ]; then
    apt update || true  # install says what is wrong
    install || failed=1
else
    install || { apt update || true; install; } || failed=1
fi
if [ "${failed:-0}" = 1 ]; then
    tail -n 12 "$log" >&2
    die "could not install them (whole log: $log); once it can: ${as_root[*]:+${as_root[*]} }sh -c '$install_command'"
fi
find_missing
[ ${#missing[@]} = 0 ] || die "still missing after apt-get: ${missing[*]} (log: $log)"
say "all present (${#packages[@]} packages, $SECONDS s)"
