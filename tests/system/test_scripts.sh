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
    for canvas in 1344 0x0 100x32 axb 32x32x32; do
        out=$(python3 $script --prompt "$work/p" --out "$work/o" --canvas $canvas 2>&1)
        like "a canvas $canvas is refused" "$? $(tail -n 1 <<<"$out")" '^2 .*--canvas'
    done
    out=$(python3 $script --out "$work/o" 2>&1)
    like 'so is a missing prompt' "$? $(tail -n 1 <<<"$out")" '^2 .*--prompt'
    # the packing that it undoes, on numbers: row (y, x), feature c * 4 + dy * 2 + dx holds latent [c, 2 y + dy, 2 x + dx]
    check 'rows become latents' python3 - "$work/script.py" <<'PYTHON'
import importlib.util, sys
spec = importlib.util.spec_from_file_location("script", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


class Rows:  # as much of a tensor as the function uses, by index arithmetic
    def __init__(self, shape, at):
        self.shape, self.at = shape, at
    def float(self): return self
    cpu = contiguous = float
    def _flat(self, index):
        place, rest = [], index
        for size in reversed(self.shape):
            place.append(rest % size)
            rest //= size
        return self.at(tuple(reversed(place)))
    def reshape(self, *shape):
        def at(place):
            index = 0
            for size, i in zip(shape, place): index = index * size + i
            return self._flat(index)
        return Rows(shape, at)
    def permute(self, *order):
        return Rows([self.shape[i] for i in order], lambda place: self.at(tuple(place[order.index(i)] for i in range(len(order)))))
    def __iter__(self):
        return (Rows(self.shape[1:], lambda place, n=n: self.at((n,) + place)) for n in range(self.shape[0]))


pictures, channels, height, width = 2, 3, 4, 6
rows = Rows((pictures * height * width // 4, 4 * channels), lambda place: place)
made = script.latents_of(rows, pictures, channels, height, width)
assert len(made) == pictures
for p, latents in enumerate(made):
    assert list(latents.shape) == [1, channels, 1, height, width]
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                row, feature = latents.at((0, c, 0, y, x))
                assert row == p * height * width // 4 + (y // 2) * (width // 2) + x // 2, (p, c, y, x, row)
                assert feature == c * 4 + y % 2 * 2 + x % 2, (p, c, y, x, feature)
PYTHON
fi
tap_end
