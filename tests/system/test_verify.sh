#!/usr/bin/env bash
# h3_verify, h3_report, scripts/archive_evidence.sh and scripts/freeze_reference.sh on real runs: everything that was changed is
# found and named, archives are the same bytes each time, and nothing but what they write is accepted.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 240
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work
bin=$H3_BIN

# run COMMAND...: rc, out (both streams), last (its last line)
run() {
    out=$("$@" 2>&1)
    rc=$?
    last=$(tail -n 1 <<<"$out")
}
# says NAME RC PATTERN: what the command that was run gave
says() { like "$1" "$rc $(tr '\n' '~' <<<"$out")" "^$2 .*$3"; }
# flip FILE OFFSET: changes one bit there
flip() {
    local value
    value=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf '%b' "\\x$(printf %x $((value ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
size() { stat -c %s "$1"; }

check 'there is a candidate that the gate accepts' clean_candidate "$work/clean"
run env H3_CLEAN_BUILD=0 scripts/submit.sh --local --plan plans/smoke.json --run "$work/smoke"
like 'a local chain ends in verdict, report and digest' "$rc $last" \
    "^0 VALID    $work/smoke  report: $work/smoke/report.html  digest [0-9a-f]{8}$"
digest=${last##* }
[ -s "$work/smoke/report.json" ] || { echo "$out" >&2; tap_end; }

# --- a run -----------------------------------------------------------------------------------------------------------------

run "$bin/h3_verify" run "$work/smoke"
like 'the run is VALID' "$rc $last" "^0 VALID      $work/smoke  [0-9]+ files are as they were written  digest $digest$"
like 'its outcome is said apart' "$out" '^outcome    VALID: The candidate computes this model'
like 'the digests of all tensors were made again' "$out" '^tensors    464 digests recomputed$'
like 'and the report was looked at' "$out" '^report     says what the stages say$'

cp -a "$work/smoke" "$work/copy"
changed=0
# changed_is_found FILE [WANTED]: one byte in it, near its start, in its middle, at its end
changed_is_found() {
    local file=$work/copy/$1 wanted=${2:-$1} bytes offset missed=''
    bytes=$(size "$file")
    for offset in 9 $((bytes / 2)) $((bytes - 2)); do
        flip "$file" "$offset"
        run "$bin/h3_verify" run "$work/copy"
        [[ $rc = 3 && $last == INVALID* && $out == *"$wanted"* ]] || missed+=" $offset: $rc $last"
        flip "$file" "$offset"
        changed=$((changed + 1))
    done
    is "a byte changed in $1 is found, and the file named" "$missed" ''
}
for file in data/reference/s48/bf16/block-001.h5 data/reference/s48/fp32/boundary-input.h5 data/generate/candidate/seed43.h5 \
    reference-manifest.json thresholds.json generate-provider.json generate-candidate.json gate.json compare.json \
    generation-contract.json report.json report.html junit.xml \
    stages/{reference_pass,threshold_freeze,generate_provider,candidate_gate,generate_candidate,compare}/stage.json; do
    changed_is_found "$file"
done
changed_is_found plan.json plan
is 'that many bytes' "$changed" 60
run "$bin/h3_verify" run "$work/copy"
is 'unchanged again it is VALID' "$rc" 0

artifact=$work/copy/data/reference/s48/fp32/block-000.h5
flip "$artifact" 4096
flip "$work/copy/data/generate/provider/seed42.h5" 3000
run "$bin/h3_verify" run "$work/copy"
like 'of an artifact the dataset is named too' "$out" 'fp32/block-000.h5: "[a-z0-9_.]+": .*digest'
like 'all damaged files are named' "$out" 'generate/provider/seed42.h5'
like 'and counted' "$last" \
    '^INVALID    2 of 28 files not as listed, the first is data/reference/s48/fp32/block-000.h5; rerun h3_reference_pass$'
flip "$artifact" 4096
flip "$work/copy/data/generate/provider/seed42.h5" 3000

spoil() { # spoil NAME PATTERN COMMAND...: the copy, changed by the command, is INVALID
    local name=$1 pattern=$2
    shift 2
    rm -rf "$work/copy" && cp -a "$work/smoke" "$work/copy"
    (cd "$work/copy" && "$@") || not_ok "$name" "cannot: $*"
    run "$bin/h3_verify" run "$work/copy"
    like "$name" "$rc $last" "^3 INVALID    .*$pattern"
}
spoil 'a missing artifact' 'not as listed, the first is data/generate/provider/seed44.h5' rm data/generate/provider/seed44.h5
like 'is named' "$out" 'seed44.h5 is missing'
spoil 'a missing stage' 'is not listed by any stage' rm -r stages/compare
spoil 'an artifact that nobody lists' 'extra.h5 is not listed' cp data/generate/provider/seed44.h5 data/extra.h5
spoil 'a report that nobody lists' 'extra.json is not listed' cp gate.json extra.json
spoil 'a link in place of a file' 'not as listed' sh -c 'mv gate.json g && ln -s g gate.json'
spoil 'a stage of another name' 'is not a stage' mkdir stages/other
spoil 'a report that is not complete' 'junit.xml' rm junit.xml
for offer in "$work/none" "$work/clean/none"; do
    run "$bin/h3_verify" run "$offer"
    says 'no run is a usage error' 2 'is no folder with a run'
done

# What somebody would change who makes all hashes again: the figures must agree with the verdict.
rehash() { # rehash STAGE FILE: lists the file as it is now, and seals stage.json again
    local json=$work/copy/stages/$1/stage.json sum
    sum=$(sha256sum <"$work/copy/$2")
    awk -v path="\"path\": \"$2\"" -v size="$(size "$work/copy/$2")" -v sum="${sum%% *}" '
        index($0, "\"outputs\"") { outputs = 1 }
        outputs && index($0, path) { found = 3 }
        found == 2 { sub(/[0-9]+/, size) }
        found == 1 { sub(/"[0-9a-f]+"/, "\"" sum "\"") }
        { if (found) found--; print }' "$json" >"$json.new"
    head -n -3 "$json.new" >"$json.text"
    head -n -2 "$json.new" | tail -n 1 | sed 's/,$//' >>"$json.text"
    sum=$({ cat "$json.text"; echo '}'; } | sha256sum)
    { sed '$s/$/,/' "$json.text"; printf '  "sha256": "%s"\n}\n' "${sum%% *}"; } >"$json"
    rm "$json.new" "$json.text"
}
forge() { # forge NAME PATTERN STAGE FILE SED: of a run up to the gate
    rm -rf "$work/copy" && cp -a "$work/smoke" "$work/copy"
    (cd "$work/copy" && rm -r stages/{generate_candidate,compare} {compare,generate-candidate,report}.json report.html junit.xml \
        data/generate/candidate)
    sed -i "$5" "$work/copy/$4"
    rehash "$3" "$4"
    run "$bin/h3_verify" run "$work/copy"
    like "$1" "$rc $last" "$2"
}
forge 'a run up to its gate verifies, resealed' '^0 VALID' candidate_gate gate.json ''
like 'and is not complete' "$out" '^outcome    INCOMPLETE: No verdict yet: still to be run: generate candidate, compare'
forge 'a bound that is not the frozen one' '^3 INVALID .*bound of s48/boundary.temb is not the frozen one' \
    candidate_gate gate.json '0,/"bound": 0.001$/s//"bound": 0.002/;0,/"bound": 0.001,/s//"bound": 0.002,/'
forge 'another count of checks' '^3 INVALID .*gate.json: checks disagrees' \
    candidate_gate gate.json 's/"checks": 279/"checks": 280/'
forge 'a failed check under a good verdict' '^3 INVALID .*gate.json' \
    candidate_gate gate.json '0,/"state": "passed"/s//"state": "failed"/'
forge 'a section that did not run' '^3 INVALID .*sections' \
    candidate_gate gate.json 's/"full_model": "passed"/"full_model": "not run"/'
forge 'another verdict' '^3 INVALID .*verdict' candidate_gate gate.json 's/"verdict": "VALID"/"verdict": "PARTIAL"/'
forge 'another velocity digest' '^3 INVALID .*velocity.video, step 0' \
    generate_provider generate-provider.json '/"video": \[/,/\]/{0,/"[0-9a-f]\{64\}"/s/"[0-9a-f]\{8\}/"00000000/}'

# --- reports ---------------------------------------------------------------------------------------------------------------

cp -a "$work/smoke" "$work/elsewhere"
rm "$work"/elsewhere/{report.json,report.html,junit.xml}
run "$bin/h3_report" --run "$work/elsewhere"
says 'h3_report says verdict and place' 0 'VALID: The candidate.*report.html  digest'
for file in report.json report.html junit.xml; do
    check "$file is the same bytes, elsewhere too" cmp "$work/smoke/$file" "$work/elsewhere/$file"
done
if command -v xmllint >/dev/null; then check 'junit.xml is well-formed' xmllint --noout "$work/smoke/junit.xml"; fi
is 'junit.xml: as many cases as checks, bounds, figures, sections and stages' \
    "$(grep -c '<testcase ' "$work/smoke/junit.xml")" $((279 + 199 + 6 + 4 + 6))
unlike 'report.html needs nothing from outside' "$(cat "$work/smoke/report.html")" 'https?:|src=|href=|url\(|<script'
like 'it opens on the verdict' "$(sed -n '/<main>/,$p' "$work/smoke/report.html" | head -n 2)" '<span class="word">VALID</span>'
is 'three pictures' "$(grep -c '<svg ' "$work/smoke/report.html")" 3
run "$bin/h3_report" --run "$work/none"
says 'no run is a usage error' 2 'is no folder with a run'
flip "$work/elsewhere/gate.json" 999
run "$bin/h3_report" --run "$work/elsewhere"
says 'a damaged run gives no report' 3 'gate.json has not the listed SHA-256'
rm -rf "$work/elsewhere"

# --- archives --------------------------------------------------------------------------------------------------------------

archive() { run scripts/archive_evidence.sh "$@"; }
mkdir "$work/there"
cp -R "$work/smoke" "$work/there/smoke" # other times, another place
touch -d 2001-01-01 "$work/there/smoke/gate.json"
chmod 600 "$work/there/smoke/gate.json"
echo 'a note' >"$work/there/smoke/logs/note.log"
archive "$work/smoke" --out "$work/one.tar.zst"
says 'an archive is made' 0 'payload +[0-9]+ files.*archive .*SHA-256 [0-9a-f]{64}.*digest .*signature +none'
archive "$work/there/smoke" --out "$work/two.tar.zst"
check 'the same run gives the same bytes, elsewhere and at another time' cmp "$work/one.tar.zst" "$work/two.tar.zst"
run "$bin/h3_verify" archive "$work/one.tar.zst"
like 'it is VALID' "$rc $last" "^0 VALID      $work/one.tar.zst  [0-9]+ files, [0-9,]+ bytes  digest [0-9a-f]{8}$"
like 'and says what it holds' "$out" '^outcome    smoke: VALID$'
names=$(tar --zstd -tf "$work/one.tar.zst")
unlike 'artifacts, logs, hosts and locks are not in it' "$names" '\.h5$|logs|site.json|\.lock|history'
like 'stages and reports are' "$names" '^smoke/data/stages/compare/stage.json$'

bytes=$(size "$work/one.tar.zst")
missed=''
for offset in 0 3 4 5 6 8 $((bytes / 7)) $((bytes / 3)) $((bytes / 2)) $((bytes * 3 / 4)) $((bytes * 8 / 9)) \
    $((bytes - 5)) $((bytes - 4)) $((bytes - 1)); do
    cp "$work/one.tar.zst" "$work/bad.tar.zst"
    flip "$work/bad.tar.zst" "$offset"
    run "$bin/h3_verify" archive "$work/bad.tar.zst"
    [[ $rc = 3 && $last == INVALID* ]] || missed+=" $offset: $rc $last"
done
is 'a byte changed anywhere in it is found' "$missed" ''
head -c $((bytes / 2)) "$work/one.tar.zst" >"$work/bad.tar.zst"
run "$bin/h3_verify" archive "$work/bad.tar.zst"
like 'a part of it is not enough' "$rc $last" '^3 INVALID .*cut off'
cat "$work/one.tar.zst" "$work/one.tar.zst" >"$work/bad.tar.zst"
run "$bin/h3_verify" archive "$work/bad.tar.zst"
like 'nor is more than it' "$rc $last" '^3 INVALID .*bytes behind its end'
: >"$work/bad.tar.zst"
run "$bin/h3_verify" archive "$work/bad.tar.zst"
like 'an empty file' "$rc $last" '^3 INVALID '
run env PATH=/nowhere "$bin/h3_verify" archive "$work/one.tar.zst"
says 'without zstd it says what to install' 4 'zstd cannot be started.*make deps'

# tricks with GNU tar, on the archive unpacked
zstd -q -d "$work/one.tar.zst" -o "$work/good.tar"
run "$bin/h3_verify" archive "$work/good.tar"
is 'a plain tar of the same bytes is taken' "$rc" 0
mkdir "$work/bag" && tar -xf "$work/good.tar" -C "$work/bag"
run "$bin/h3_verify" run "$work/bag/smoke/data"
like 'the run in an archive without artifacts lacks those, and nothing else' "$rc $last" \
    '^3 INVALID    none of the 14 artifacts, frames and sounds is here, as in an archive made without --with-artifacts; everything else is as listed: '
like 'ten of them are named' "$out" '^ +and 4 more$'
run "$bin/h3_report" --run "$work/bag/smoke/data"
like 'its report can be made again, to the same bytes' "$rc $last" "^0 report .*digest $digest\$"
rm "$work/bag/smoke/data/gate.json"
run "$bin/h3_verify" run "$work/bag/smoke/data"
like 'what else is missing is said' "$rc $last" '^3 INVALID    15 of 28 files not as listed'
tar -xf "$work/good.tar" -C "$work/bag"
run "$bin/h3_verify" run "$work/bag/smoke"
says 'of an unpacked archive it is said where the run lies' 2 "is an unpacked archive: its run is $work/bag/smoke/data"
run "$bin/h3_verify" run "$work/bag"
says 'a folder of something else is no run' 2 'is no folder with a run; check the path'
cp "$work/bag/smoke/data/plan.json" "$work/bag/smoke/data/zzz.json"
(cd "$work/bag/smoke/data" && ln -s /etc/passwd zz-link && ln plan.json zz-hard && mkfifo zz-pipe && mkdir zz-folder &&
    cp plan.json 'zz name' && cp plan.json zz-owned)
# shellcheck disable=SC2054  # the commas are tar's
fixed=(--mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r --no-recursion)
trick() { # trick NAME PATTERN TAR-OPTIONS...: appended to the good archive
    local name=$1 pattern=$2
    shift 2
    cp "$work/good.tar" "$work/bad.tar"
    (cd "$work/bag" && tar -r -f "$work/bad.tar" --format=ustar "${fixed[@]}" "$@") >&2
    run "$bin/h3_verify" archive "$work/bad.tar"
    like "$name" "$rc $(tr '\n' '~' <<<"$out")" "^3 .*$pattern.*INVALID  "
}
refused() { # refused NAME PATTERN TAR-OPTIONS...: at once
    local name=$1 pattern=$2
    shift 2
    trick "$name" '' "$@"
    like "$name: why" "$last" "^INVALID    .*$pattern"
}
trick 'a file that is not in the manifest' 'data/zzz.json: not listed by manifest-sha256.txt' smoke/data/zzz.json
refused 'a symbolic link' 'zz-link is a symbolic link' smoke/data/zz-link
refused 'a hard link' 'zz-hard is a hard link' smoke/data/plan.json smoke/data/zz-hard --transform 's,data/plan,data/zz-a,'
refused 'a pipe' 'zz-pipe is a pipe' smoke/data/zz-pipe
refused 'a device' 'null is a device' -C /dev null --transform 's,null,smoke/data/null,'
refused 'a folder' 'zz-folder/.*(is a folder|empty component)' smoke/data/zz-folder
refused 'an absolute path' 'absolute' -P --transform 's,^smoke/data/zzz.json,/etc/zzz.json,' smoke/data/zzz.json
refused 'a path with ..' '\.\.' -P --transform 's,zzz.json,../../zzz.json,' smoke/data/zzz.json
refused 'a path outside the folder' 'outside the folder smoke/' --transform 's,^smoke,other,' smoke/data/zzz.json
refused 'a file twice' 'twice or out of order' smoke/data/plan.json
refused 'an unsafe name' 'unsafe name' 'smoke/data/zz name'
refused 'an owner' 'header of smoke/data/zz-owned' --owner=1 smoke/data/zz-owned
refused 'a time' 'header of smoke/data/zz-owned' --mtime=@1 smoke/data/zz-owned
long=$(printf 'z%.0s' {1..120})
cp "$work/bag/smoke/data/plan.json" "$work/bag/smoke/data/$long"
cp "$work/good.tar" "$work/bad.tar"
(cd "$work/bag" && tar -c -f "$work/long.tar" --format=gnu "${fixed[@]}" "smoke/data/$long" &&
    tar -A -f "$work/bad.tar" "$work/long.tar")
run "$bin/h3_verify" archive "$work/bad.tar"
says 'an extended header' 3 'INVALID .*(is an extension|is refused)'
grep -v report.html <<<"$names" >"$work/names"
(cd "$work/bag" && tar -c -f "$work/bad.tar" --format=ustar "${fixed[@]}" -T "$work/names")
run "$bin/h3_verify" archive "$work/bad.tar"
says 'a missing file' 3 'data/report.html: missing'

archive "$work/smoke" --with-artifacts --with-history --out "$work/whole.tar.zst"
is 'an archive with everything' "$rc" 0
mkdir "$work/unpacked" && tar --zstd -xf "$work/whole.tar.zst" -C "$work/unpacked"
run "$bin/h3_verify" run "$work/unpacked/smoke/data"
is 'unpacked it is a run that verifies' "$rc" 0
cp -a "$work/unpacked/smoke/data" "$work/again"
for made in "reference_pass $work/other reference-manifest.json" "threshold_freeze $work/other thresholds.json" \
    "candidate_gate $work/again gate.json" "compare $work/again compare.json"; do
    read -r stage folder file <<<"$made"
    check "its own plan serves $stage" "$bin/h3_$stage" --plan "$work/again/plan.json" --run "$folder"
    check "which makes $file again, to the same bytes" cmp "$folder/$file" "$work/smoke/$file"
done
check 'its history stands apart' [ -s "$work/unpacked/smoke/history/stages/compare/site.json" ]
check 'sha256sum agrees by itself' env -C "$work/unpacked/smoke" sha256sum --quiet -c manifest-sha256.txt tagmanifest-sha256.txt

# damage in a large file has a place
mkdir "$work/there/smoke/figures"
head -c 9437189 /dev/zero | tr '\0' x >"$work/there/smoke/figures/large.bin"
archive "$work/there/smoke"
check 'the default place is beside the run' [ -s "$work/there/smoke.tar.zst" ]
zstd -q -d "$work/there/smoke.tar.zst" -o "$work/large.tar"
at=$(grep -abo xxxxxxxxxxxxxxxx "$work/large.tar" | head -n 1 | cut -d: -f1)
flip "$work/large.tar" $((at + 5000000))
run "$bin/h3_verify" archive "$work/large.tar"
says 'damage in a large file has a place' 3 \
    'data/figures/large.bin: SHA-256 differs at byte range 4,194,304-8,388,607 \(expected [0-9a-f]{12}\.\.\., found'
like 'one file of many' "$out" '^payload    [0-9]+ of [0-9]+ files good$'
is 'the verdict' "$last" 'INVALID    1 file changed since it was sealed; fetch the archive again'
rm -r "$work/there/smoke/figures"

mkdir "$work/there/smoke/odd" && ln -s /etc/passwd "$work/there/smoke/odd/link"
archive "$work/there/smoke"
says 'a link in the run is not archived' 3 'odd/link in .* is no regular file'
rm "$work/there/smoke/odd/link" && : >"$work/there/smoke/odd/a name"
archive "$work/there/smoke"
says 'nor is an unsafe name' 3 'a name that an archive cannot take'
rm -r "$work/there/smoke/odd"
flip "$work/there/smoke/thresholds.json" 500
archive "$work/there/smoke" --out "$work/never"
says 'nor a run that does not verify' 3 'thresholds.json.*nothing was archived'
check 'and nothing is left of it' [ ! -e "$work/never" ]
flip "$work/there/smoke/thresholds.json" 500

# --- signatures ------------------------------------------------------------------------------------------------------------

for key in team other; do
    openssl genpkey -algorithm ed25519 -out "$work/$key.pem" && openssl pkey -in "$work/$key.pem" -pubout -out "$work/$key.pub"
done
archive "$work/smoke" --key "$work/team.pem" --out "$work/signed.tar.zst"
says 'a signed archive' 0 'signature +good, ed25519 ([0-9a-f]{2}:){7}[0-9a-f]{2}'
archive "$work/there/smoke" --key "$work/team.pem" --out "$work/again.tar.zst"
check 'is the same bytes too' cmp "$work/signed.tar.zst" "$work/again.tar.zst"
run "$bin/h3_verify" archive "$work/signed.tar.zst" --key "$work/team.pub"
says 'its signature is good' 0 'signature +good, ed25519.*VALID'
run "$bin/h3_verify" archive "$work/signed.tar.zst"
says 'without the key it is not checked, and that is said' 0 'signature +present, not checked'
run "$bin/h3_verify" archive "$work/signed.tar.zst" --key "$work/other.pub"
says 'another key' 3 'signature +BAD.*INVALID .*signed with another key'
run "$bin/h3_verify" archive "$work/one.tar.zst" --key "$work/team.pub"
says 'a signature taken off' 3 'INVALID .*is not signed'
run "$bin/h3_verify" archive "$work/signed.tar.zst" --key "$work/team.pem"
says 'a private key is no public one' 2 'is not a public key'
mkdir "$work/by-hand" && tar --zstd -xf "$work/signed.tar.zst" -C "$work/by-hand"
check 'openssl agrees by itself' env -C "$work/by-hand/smoke" openssl pkeyutl -verify -rawin -pubin -inkey "$work/team.pub" \
    -in tagmanifest-sha256.txt -sigfile tagmanifest-sha256.txt.sig
archive "$work/smoke" --key "$work/team.pub" --out "$work/never"
says 'a public key does not sign' 2 'no private Ed25519 key'

# --- frozen references -------------------------------------------------------------------------------------------------------

mkdir -p "$work/project/plans" && cp generation-contract.json "$work/project"
freeze() { run scripts/freeze_reference.sh "$@" --to "$work/project"; }
freeze "$work/smoke"
says 'a reference is frozen under the name of its plan' 0 \
    'frozen +manifests/smoke-manifest.json.*thresholds/smoke-thresholds.json'
check 'the manifest is that of the run' cmp "$work/smoke/reference-manifest.json" "$work/project/manifests/smoke-manifest.json"
check 'so are the thresholds' cmp "$work/smoke/thresholds.json" "$work/project/thresholds/smoke-thresholds.json"
is 'nothing else is there' "$(cd "$work/project" && find manifests thresholds -type f | wc -l)" 2
freeze "$work/smoke"
says 'again: it is there' 0 'hold this reference already'
freeze "$work/smoke" --name other_name
check 'under another name' cmp "$work/smoke/thresholds.json" "$work/project/thresholds/other_name-thresholds.json"
echo x >>"$work/project/manifests/other_name-manifest.json"
freeze "$work/smoke" --name other_name
says 'another reference is not overwritten' 3 'holds another reference'
freeze "$work/smoke" --name other_name --replace
says 'unless that is asked for' 0 frozen
freeze "$work/smoke" --name ../x
says 'a name is a name' 2 'letters, digits'
rm -rf "$work/copy" && cp -a "$work/smoke" "$work/copy" &&
    (cd "$work/copy" && rm -r stages/compare compare.json report.json report.html junit.xml)
freeze "$work/copy" --name copy
says 'a run that is not complete is refused' 1 'did not pass \(INCOMPLETE'
flip "$work/copy/thresholds.json" 700
freeze "$work/copy" --name copy
says 'a run that does not verify is refused' 3 'does not verify; nothing was kept'
check 'and left nothing' [ ! -e "$work/project/manifests/copy-manifest.json" ]

pinned=$work/project/plans/pinned.json
pins='{"manifest": "manifests/smoke-manifest.json", "thresholds": "thresholds/smoke-thresholds.json"}'
sed "1s|{|{\"pins\": $pins,|" plans/smoke.json >"$pinned"
reproduce() { # reproduce RUN: stages 1 and 2 of the pinned plan
    run "$bin/h3_reference_pass" --plan "$pinned" --run "$work/$1"
    [ $rc = 0 ] || return
    run "$bin/h3_threshold_freeze" --plan "$pinned" --run "$work/$1"
}
reproduce pinned
is 'a plan that pins them reproduces them' "$rc" 0
check 'to the byte' cmp "$work/smoke/reference-manifest.json" "$work/pinned/reference-manifest.json"
run "$bin/h3_verify" run "$work/pinned"
says 'and the pinned run verifies' 0 'outcome +INCOMPLETE'
sed -i '0,/"digest": "./s//&0/;0,/\("digest": ".0[0-9a-f]\{62\}\)[0-9a-f]"/s//\1"/' "$work/project/manifests/smoke-manifest.json"
reproduce pinned2
says 'a pinned manifest that was edited is not reproduced' 3 'smoke-manifest.json.*(is not reproduced|one of the two has changed)'
cp "$work/smoke/reference-manifest.json" "$work/project/manifests/smoke-manifest.json"
sed -i '0,/"bound": 0\.00/s//"bound": 0.01/' "$work/project/thresholds/smoke-thresholds.json"
reproduce pinned3
says 'nor pinned thresholds' 3 'smoke-thresholds.json'

# --- checkpoints ---------------------------------------------------------------------------------------------------------------

cp -R tests/golden/nano/transformer "$work/checkpoint"
checkpoint() { run "$bin/h3_verify" checkpoint "$work/checkpoint" "$@"; }
checkpoint
says 'a checkpoint' 0 \
    'config +[0-9a-f]{64}.*shard +[0-9a-f]{64}.*VALID .* 2 shards, [0-9]+ tensors, [0-9,]+ bytes  identity [0-9a-f]{8}'
(cd "$work/checkpoint" && sha256sum ./*) | sed 's,\./,,' >"$work/sums"
sed 's/^\([0-9a-f]*\)  \(.*\)$/"\2": "\1",/;1s/^/{/;$s/,$/}/' "$work/sums" >"$work/sums.json"
checkpoint --hashes "$work/sums"
says 'with the hashes of sha256sum' 0 'hashes +4 of 4 files as listed'
checkpoint --hashes "$work/sums.json"
says 'with hashes as JSON' 0 'hashes +4 of 4 files as listed'
sed -i '1s/^./g/' "$work/sums"
checkpoint --hashes "$work/sums"
says 'a malformed list is a usage error' 2 'line 1'
sed 's/"\(.\)\([0-9a-f]\{63\}\)"/"0\2"/;s/: "00/: "01/' "$work/sums.json" >"$work/wrong.json"
checkpoint --hashes "$work/wrong.json"
says 'other hashes' 3 'SHA-256 differs \(expected.*INVALID '
grep -v config.json "$work/sums.json" | sed '1s/^\([^{]\)/{\1/' >"$work/short.json"
checkpoint --hashes "$work/short.json"
says 'a file that is not listed' 3 'config.json: not listed in .*INVALID '
zeros=$(printf '0%.0s' {1..64})
sed "s/}\$/, \"README.md\": \"$zeros\"}/" "$work/sums.json" >"$work/long.json"
checkpoint --hashes "$work/long.json"
says 'a listed file that is not there' 3 'README.md.*INVALID '
shard=$work/checkpoint/diffusion_pytorch_model-00002-of-00002.safetensors
flip "$shard" $(($(size "$shard") - 3))
checkpoint --hashes "$work/sums.json"
says 'a byte changed in a shard' 3 'model-00002-of-00002.safetensors: SHA-256 differs'
truncate -s -1 "$shard"
checkpoint
says 'a truncated shard' 3 'INVALID .*00002-of-00002.safetensors'
run "$bin/h3_verify" checkpoint "$work/none"
says 'no checkpoint is a usage error' 2 'is no folder'

# --- usage -------------------------------------------------------------------------------------------------------------------

usage() { # usage NAME PATTERN ARGUMENT...
    local name=$1 pattern=$2
    shift 2
    run "$bin/h3_verify" "$@"
    is "$name: exit 2, one line" "$rc $(wc -l <<<"$out")" '2 1'
    like "$name: says so" "$out" "$pattern"
}
usage 'nothing to verify' 'say what to verify'
usage 'an unknown kind' 'cannot be verified: checkpoint, run or archive' nonsense "$work"
usage 'two runs' 'say what to verify' run "$work" "$work"
usage 'a key for a run' '--key belongs to archive' run "$work/smoke" --key x
usage 'hashes for an archive' '--hashes belongs to checkpoint' archive "$work/one.tar.zst" --hashes x
usage 'an unknown option' 'unknown option' run "$work/smoke" --fast
for program in "$bin/h3_verify" "$bin/h3_report" scripts/archive_evidence.sh scripts/freeze_reference.sh; do
    run "$program" --help
    says "${program##*/} --help has an example and the exit codes" 0 '[Ee]xit codes: .*[Ee]xample: '
done
for program in reference_pass threshold_freeze generate candidate_gate compare diagnose; do
    run "$bin/h3_$program" --help
    says "h3_$program can be stopped, and says with which exit code" 0 '[Ee]xit codes: .*75 stopped by a signal'
done
for script in scripts/archive_evidence.sh scripts/freeze_reference.sh; do
    run "$script"
    says "${script##*/} without a run" 2 'which run'
    run "$script" --fast "$work/smoke"
    says "${script##*/}: an unknown option" 2 'unknown option --fast'
    run "$script" "$work/none"
    says "${script##*/}: no run there" 2 'no folder with a run'
done

tap_end
