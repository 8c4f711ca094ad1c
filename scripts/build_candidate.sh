#!/usr/bin/env bash
# Builds the shipped candidate from a clean export of the commit and keeps the library with the run.
#
#   scripts/build_candidate.sh RUN     writes RUN/build/lib/libh3_candidate_*.so
#
# What is not committed is not in it; H3_CLEAN_BUILD=0 makes the job take lib/h3/ as it is instead. Outside a git checkout
# there is no commit to export: the library as built is copied, and that is said.
set -euo pipefail

[ $# = 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0" >&2; exit 2; }
run=$1
into=$run/build/lib
say() { printf 'build    %s\n' "$*"; }

publish() { # publish LIBRARY...: replaces what was there, each file in one step
    local library
    {
        mkdir -p "$into" && rm -f "$into"/libh3_candidate_*.so || return
        for library in "$@"; do
            cp "$library" "$into/.new.$$" && mv "$into/.new.$$" "$into/${library##*/}" || return
        done
    } 2>/dev/null
}
cannot_write() {
    rm -f "$into/.new.$$"
    echo "build    cannot write to $into; check its permissions and the space there" >&2
    exit 4
}

if [ ! -e .git ] || ! commit=$(git rev-parse --verify HEAD 2>/dev/null); then
    library_folder=${H3_LIB:-lib/h3}
    [ -d "$library_folder" ] || library_folder=../../lib/h3
    built=("$library_folder"/libh3_candidate_*.so)
    [ -e "${built[0]}" ] || { echo "build    no candidate library in $library_folder; run: make all" >&2; exit 1; }
    publish "${built[@]}" || cannot_write
    say "no git checkout here: the candidate is the one in $library_folder, not built anew"
    exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive "$commit" | tar -x -C "$work"
if ! env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$work" -j"$(nproc)" candidate REVISION="${commit:0:12}" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    echo "build    the candidate of commit ${commit:0:12} does not build" >&2
    exit 1
fi
built=("$work"/lib/h3/libh3_candidate_*.so)
[ -e "${built[0]}" ] || { echo "build    commit ${commit:0:12} has no candidate in kernels/candidate" >&2; exit 1; }
publish "${built[@]}" || cannot_write
say "candidate from a clean export of commit ${commit:0:12}"
if [ -n "$(GIT_OPTIONAL_LOCKS=0 git status --porcelain -- kernels include Makefile mk)" ]; then
    say 'changes that are not committed are not in it; H3_CLEAN_BUILD=0 takes lib/h3/ as it is'
fi
