#!/usr/bin/env bash
# Prints the dependency files below the given folders. One that names a file which is no more is removed, and what it belongs to becomes older than any
# source, so that it is made again: a source or header that has moved must not stop make.
mapfile -t files < <(find "$@" -name '*.d' 2>/dev/null)
[ ${#files[@]} -gt 0 ] || exit 0
named() { awk '{ for (i = 1; i <= NF; i++) if ($i !~ /:$/ && $i != "\\") print $i }' "$@" | sort -u; }
gone=$(named "${files[@]}" | while read -r file; do [ -e "$file" ] || echo "$file"; done)
for file in "${files[@]}"; do
    if [ -n "$gone" ] && named "$file" | grep -qxF "$gone"; then
        sed -n '1s/:.*//p' "$file" | xargs touch -c -d @0
        rm -f "$file"
    else
        echo "$file"
    fi
done
