#!/usr/bin/env bash
# scripts/export_conditioning.py as far as it can be looked at without PyTorch and the model: it compiles, teaches and refuses.
# Where there is no python3 it cannot run at all; its place in the documents is looked at everywhere.
set -u
. tests/tools/tap.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
script=scripts/export_conditioning.py

like 'docs/plan.md shows it' "$(cat docs/plan.md)" "$script --prompt"
for tensor in text text_tags 'condition\.' 'image\.'; do like "it writes $tensor" "$(cat $script)" "^ +tensors.*\"$tensor"; done
is 'the revision is the contract'"'"'s' "$(grep -o '[0-9a-f]\{40\}' $script)" "$(sed -n 's/.*"revision": "\([0-9a-f]*\)".*/\1/p' generation-contract.json)"
if command -v python3 >/dev/null && python3 -c 'import argparse' 2>/dev/null; then
    cp $script "$work/script.py"
    check 'it compiles' python3 -m py_compile "$work/script.py"
    out=$(python3 $script --help 2>&1)
    is '--help needs nothing but Python' "$?" 0
    like 'and shows an example' "$out" '^  scripts/export_conditioning.py --model .* --out conditioning.safetensors$'
    printf 'A fox runs over snow.' >"$work/prompt"
    : >"$work/empty"
    printf '\377\376' >"$work/latin"
    mkfifo "$work/fifo"
    refused() { # refused NAME PATTERN OPTION...: the last line and the exit code match, nothing is written
        local name=$1 pattern=$2 out
        shift 2
        out=$(python3 $script --prompt "$work/prompt" --out "$work/out" "$@" 2>&1 </dev/null)
        like "$name is refused" "$? $(tail -n 1 <<<"$out")" "$pattern"
        [ ! -e "$work/out" ] || not_ok "$name: something was written"
    }
    for canvas in 1344 0x0 100x32 axb 32x32x32 -32x32 32x16416; do refused "a canvas $canvas" '^2 .*--canvas' --canvas=$canvas; done
    refused 'a prompt that is not there' "^3 export_conditioning: --prompt $work/absent: .*; give" --prompt "$work/absent"
    refused 'an empty one' '^3 .*empty: it is empty; write' --prompt "$work/empty"
    refused 'one that is not UTF-8' '^3 .*latin: .*; give a text file in UTF-8' --prompt "$work/latin"
    refused 'a place in no folder' '^2 .*--out .*absent/out: give' --out "$work/absent/out"
    refused 'a folder as the file' '^2 .*--out .*: give' --out "$work"
    refused 'what is no file' '^2 .*--out .*fifo: give' --out "$work/fifo"
    check 'and stays what it was' test -p "$work/fifo"
    out=$(python3 $script --out "$work/o" 2>&1)
    like 'so is a missing prompt' "$? $(tail -n 1 <<<"$out")" '^2 .*--prompt'
    mkdir "$work/bare"
    echo 'raise ImportError("No module named torch")' | tee "$work/bare/numpy.py" >"$work/bare/torch.py"
    PYTHONPATH=$work/bare refused 'a machine without PyTorch' '^4 .*No module named torch; install PyTorch'

    # The file it writes, without PyTorch: byte for byte, whole or not at all, and read by h3_keyframe.
    check 'it writes a file of its own making' python3 - "$work" <<'PYTHON'
import importlib.util, json, pathlib, struct, sys, zlib
work = pathlib.Path(sys.argv[1])
spec = importlib.util.spec_from_file_location("script", work / "script.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
entries = {"text": ("BF16", [3, 8], b"?" * 48), "text_tags": ("I64", [3], struct.pack("<3q", 1, 0, 1))}
data = script.safetensors(entries, {"b": "1", "a": "2"})
size = int.from_bytes(data[:8], "little")
assert size % 8 == 0 and len(data) == 8 + size + 72
assert data[8:8 + size].rstrip(b" ") == (b'{"__metadata__":{"b":"1","a":"2"},"text":{"dtype":"BF16","shape":[3,8],"data_offsets":[0,48]},'
                                         b'"text_tags":{"dtype":"I64","shape":[3],"data_offsets":[48,72]}}'), data
script.publish(work / "text.safetensors", b"old")
script.publish(work / "text.safetensors", data)
assert (work / "text.safetensors").read_bytes() == data
try:
    script.publish(work / "bare", data)  # a folder
    raise AssertionError("a folder was replaced")
except SystemExit as end:
    assert end.code == 4
assert not list(work.glob("*.part"))
part = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
(work / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">2I5B", 1, 1, 8, 2, 0, 0, 0)) + part(b"IDAT", zlib.compress(b"\0fox")) + part(b"IEND", b""))
PYTHON
    out=$("${H3_BIN:-bin}/h3_keyframe" --text "$work/text.safetensors" --first "$work/picture.png" --canvas 32x32 --out "$work/ours.safetensors" 2>&1)
    like 'that h3_keyframe reads' "$? $out" '^0 keyframe .*  3 text rows, canvas 32x32, pictures$'
fi
tap_end
