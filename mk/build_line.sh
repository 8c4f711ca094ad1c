#!/usr/bin/env bash
# One line about what is built, and the warnings that wait in it: mk/build_line.sh BUILD BIN LIB [SECONDS]
set -euo pipefail
shopt -s nullglob
build=$1 bin=$2 lib=$3

programs=("$bin"/h3_*)
libraries=''
for library in "$lib"/libh3_*.so; do
    name=${library##*/libh3_}
    name=${name%.so}
    libraries+=" ${name//_/-}"
done
line=$(printf 'build    %s/ %d programs, %s/%s' "$bin" ${#programs[@]} "$lib" "${libraries:- no libraries}")
if [ $# -gt 3 ]; then printf '%-96s %6s s\n' "$line" "$4"; else echo "$line"; fi

mapfile -t warned < <(find "$build" -path "$build/sanitize" -prune -o -name '*.warn' -print | sort)
if [ ${#warned[@]} -gt 0 ]; then
    cat "${warned[@]}" >&2
    echo "build    ${#warned[@]} files with warnings, above" >&2
fi
