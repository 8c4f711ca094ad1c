#!/usr/bin/env bash
# Makes one archive of a run's evidence: the same run gives the same bytes, anywhere and at any time.
#
#   scripts/archive_evidence.sh RUN [options]
#
#   --with-artifacts     the HDF5 artifacts, frames and sound too; without them stage.json still has their hashes
#   --with-history       logs, earlier attempts and site facts (hosts, users, times) too, apart from the run, in history/
#   --key PRIVATE.pem    signs it with this Ed25519 key (openssl genpkey -algorithm ed25519 -out PRIVATE.pem)
#   --out FILE           where it goes (RUN.tar.zst)
#
# The archive is a BagIt bag (RFC 8493) in a tar in one Zstandard frame: <run>/data/ is the run, as h3_verify run takes it;
# manifest-sha256.txt and tagmanifest-sha256.txt have the hashes; pieces-sha256.txt those of the 4 MiB pieces of large files;
# tagmanifest-sha256.txt.sig is the signature, over tagmanifest-sha256.txt. The run must verify first, whatever its verdict; the
# archive is verified before it gets its name.
# Previews stay behind: they are no evidence, and h3_preview makes them again from the frames and sound that are.
# "digest" is the SHA-256 of tagmanifest-sha256.txt: it does not depend on the versions of tar and zstd, the archive's own SHA-256
# may.
#
# Check one:  bin/h3_verify archive FILE [--key PUBLIC.pem]     (openssl pkey -in PRIVATE.pem -pubout -out PUBLIC.pem)
# Exit codes: 0 done; 2 usage; 3 the run does not verify; 4 environment.
# Example: scripts/archive_evidence.sh evidence/demo
set -uo pipefail
export LC_ALL=C

die() { # die CODE TEXT
    echo "archive_evidence: $2" >&2
    exit "$1"
}
help() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"; }

run='' out='' key='' with_artifacts=0 with_history=0
while [ $# -gt 0 ]; do
    case $1 in
        --with-artifacts) with_artifacts=1 ;;
        --with-history) with_history=1 ;;
        --key|--out)
            [ -n "${2:-}" ] || die 2 "$1 needs a value; see --help"
            declare "${1#--}=$2"
            shift
            ;;
        --help|-h) help; exit ;;
        -*) die 2 "unknown option $1; see --help" ;;
        *) [ -z "$run" ] || die 2 'one run at a time; see --help'; run=$1 ;;
    esac
    shift
done
[ -n "$run" ] || die 2 'which run? For example: scripts/archive_evidence.sh evidence/demo'
[ -d "$run" ] || die 2 "$run is no folder with a run; check the path"
out=${out:-${run%/}.tar.zst}
run=$(cd "$run" && pwd) || exit 4
[ -d "$(dirname "$out")" ] || die 2 "there is no folder for $out"
[ ! -d "$out" ] || die 2 "$out is a folder; name a file"
shown=$out out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
[ "${out#"$run"/}" = "$out" ] || die 2 "$out lies in the run itself; choose another place"
name=$(basename "$run" | tr -c 'A-Za-z0-9._\n-' _)
case $name in [.-]*) name=run$name ;; esac
if [ -n "$key" ]; then
    [ -f "$key" ] || die 2 "no key $key; make one with: openssl genpkey -algorithm ed25519 -out $key"
    openssl pkey -in "$key" -noout -text 2>/dev/null | grep -qi '^ED25519 Private-Key' ||
        die 2 "$key is no private Ed25519 key in PEM form"
fi

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 4
verify=''
for folder in ${H3_BIN:+"$H3_BIN"} "$project/bin" "$project/../../bin"; do
    if [ -x "$folder/h3_verify" ]; then verify=$folder/h3_verify; break; fi
done
[ -n "$verify" ] || die 4 'no program h3_verify; run: make all'

said=$("$verify" run "$run") || { code=$?; echo "$said" >&2; die $code "$run does not verify; nothing was archived"; }
outcome=$(sed -n 's/^outcome *\([A-Z]*\):.*/\1/p' <<<"$said")
plan=$(sed -n 's/^plan *\([^ ]*\) .*/\1/p' <<<"$said")

work=$(mktemp -d) || exit 4
new=$out.new.$$
trap 'rm -rf "$work" "$new"' EXIT
bag=$work/bag
mkdir "$bag" || exit 4

# --- what goes in: paths below the run, "./..." ---
# list FIND-ARGUMENTS...: sorted; names that would need quoting anywhere are refused
list() {
    local unsafe
    (cd "$run" && find . "$@" -print0) | sort -z >"$work/found" || die 4 "cannot look through $run"
    unsafe=$(grep -zvE '^\./[A-Za-z0-9._+=@,~/-]+$' "$work/found" | head -zn 1 | tr -d '\0' | tr -c '[:print:]' '?')
    [ -z "$unsafe" ] || die 3 "a file in $run has a name that an archive cannot take: $unsafe"
    cat "$work/found"
}
site=(-path ./logs -o -path ./attempts -o -path ./previews -o -path './stages/*/site.json' -o -path '*/.*')
media=(-path './data/generate/*/seed*/frames' -o -path './data/generate/*/seed*/audio.wav')
artifacts=(-name '*.h5' -o "${media[@]}")
[ $with_artifacts = 0 ] || artifacts=(-name '')
odd=$(cd "$run" && find . \( "${site[@]}" \) -prune -o ! -type d ! -type f -print) || die 4 "cannot look through $run"
[ -z "$odd" ] || die 3 "$(head -n 1 <<<"$odd") in $run is no regular file; remove it"
list \( "${site[@]}" -o "${artifacts[@]}" \) -prune -o -type f >"$work/payload"
: >"$work/history"
if [ $with_history = 1 ]; then
    past=(-path './logs/*' -o -path './attempts/*' -o -path './stages/*/site.json')
    artifacts=(-name '*.h5' -o -path '*/seed*/frames/*' -o -path '*/seed*/audio.wav')
    [ $with_artifacts = 0 ] || artifacts=(-name '')
    list -type f \( "${past[@]}" \) ! -path '*/.*' ! \( "${artifacts[@]}" \) >"$work/history"
fi

# --- hashes ---
# hashes LIST START: sha256sum lines with START before each path
hashes() {
    (cd "$run" && xargs -0r sha256sum <"$1") >"$work/sums" || die 4 "cannot read the files of $run"
    sed "s,  \./,  $2," "$work/sums"
}
pieces() {
    local path
    while IFS= read -rd '' path; do
        [ "$(stat -c %s "$run/$path")" -gt 4194304 ] || continue
        split -b 4194304 --filter=sha256sum "$run/$path" | awk -v path="data/${path#./}" -v size="$(stat -c %s "$run/$path")" '
            { first = 4194304 * (NR - 1); last = first + 4194303
              printf "%s %.0f-%.0f  %s\n", $1, first, last < size ? last : size - 1, path }'
    done <"$work/payload"
}
printf 'BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n' >"$bag/bagit.txt"
hashes "$work/payload" data/ >"$bag/manifest-sha256.txt"
pieces >"$bag/pieces-sha256.txt" || die 4 "cannot read the files of $run"
count=$(wc -l <"$bag/manifest-sha256.txt")
bytes=$(cd "$run" && xargs -0r stat -c %s <"$work/payload" | awk '{ sum += $1 } END { printf "%.0f", sum }')
cat >"$bag/bag-info.txt" <<INFO
External-Identifier: $plan
External-Description: Evidence of a kernel qualification, $([ $with_artifacts = 1 ] && echo with || echo without) its artifacts
Payload-Oxum: $bytes.$count
H3-Verdict: $outcome
INFO
(cd "$bag" && sha256sum bag-info.txt bagit.txt) >"$bag/tagmanifest-sha256.txt"
hashes "$work/history" history/ >>"$bag/tagmanifest-sha256.txt"
(cd "$bag" && sha256sum manifest-sha256.txt pieces-sha256.txt) >>"$bag/tagmanifest-sha256.txt"
tags=(bagit.txt bag-info.txt manifest-sha256.txt pieces-sha256.txt tagmanifest-sha256.txt)
if [ -n "$key" ]; then
    signed=$bag/tagmanifest-sha256.txt
    openssl pkeyutl -sign -rawin -inkey "$key" -in "$signed" -out "$signed.sig" 2>"$work/openssl" ||
        die 4 "cannot sign with $key: $(head -n 1 "$work/openssl")"
    tags+=(tagmanifest-sha256.txt.sig)
fi

# --- the archive ---
# Tag files get the folder's name before theirs; files of the run are listed as "./..." and get data/, those of the history as
# ".//..." and get history/.
printf '%s\0' "${tags[@]}" >"$work/tags"
sed -zi 's,^\./,.//,' "$work/history"
into="flags=r;s,^\([^.]\),$name/\1,;s,^\.//,$name/history/,;s,^\./,$name/data/,"
pack() {
    tar --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r --no-recursion --hard-dereference \
        --null --verbatim-files-from "$@"
}
level=19
[ $with_artifacts = 0 ] || level=3 # floating-point numbers hardly shrink
pack -c --transform="$into" -C "$bag" -T "$work/tags" -C "$run" -T "$work/payload" -T "$work/history" |
    zstd -q -$level --single-thread --zstd=wlog=23 -c >"$new" || die 4 "cannot write $out; check space and permissions"

# --- said only when it verifies ---
public=()
if [ -n "$key" ]; then
    openssl pkey -in "$key" -pubout -out "$work/public.pem" || die 4 "cannot read $key"
    public=(--key "$work/public.pem")
fi
if ! checked=$("$verify" archive "$new" ${public[@]+"${public[@]}"}); then
    echo "$checked" >&2
    die 4 "the archive of $run does not verify: did a file change meanwhile?"
fi
mv -f "$new" "$out" || die 4 "cannot write $out; check its permissions"
group() { sed -e ':a' -e 's/\([0-9]\)\([0-9]\{3\}\)\($\|,\)/\1,\2\3/;ta' <<<"$1"; }
printf '%-10s %s files, %s bytes\n' payload "$(group "$count")" "$(group "$bytes")"
sum=$(sha256sum <"$out")
printf '%-10s %s  %s bytes  SHA-256 %s\n' archive "$shown" "$(group "$(stat -c %s "$out")")" "${sum%% *}"
printf '%-10s %s\n' digest "$(sha256sum <"$bag/tagmanifest-sha256.txt" | cut -d ' ' -f 1)"
grep '^signature' <<<"$checked"
