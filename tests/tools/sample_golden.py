#!/usr/bin/env python3
"""Samples the large goldens of the tiny model, so that a clone can test itself against them.

usage: sample_golden.py TINY_FOLDER OUTPUT_FOLDER

OUTPUT_FOLDER/tiny/weights-sha256.json: SHA-256 of the stored bytes of every tensor of TINY_FOLDER/transformer.
OUTPUT_FOLDER/tiny-samples.safetensors: for every tensor of expected-fp64.safetensors and expected-bf16.safetensors (prefix "fp64." and "bf16."):
    <prefix><name>       float32 [k], k = min(256, N): element (j * 2654435761) mod N of the flattened tensor, j = 0..k-1
    l2.<prefix><name>    float64 [2]: the L2 norm over all N elements, and N
"""
import array
import glob
import hashlib
import json
import math
import struct
import sys

SAMPLES = 256
STRIDE = 2654435761


def read_bytes(path):
    """Yields (name, dtype, bytes) of every tensor in the order of the names."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    for name in sorted(header):
        begin, end = (8 + length + offset for offset in header[name]["data_offsets"])
        yield name, header[name]["dtype"], content[begin:end]


def read_tensors(path):
    """Yields (name, values) with the values as an array of floats."""
    for name, dtype, data in read_bytes(path):
        if dtype == "BF16":
            wide = bytearray(2 * len(data))
            wide[2::4], wide[3::4] = data[0::2], data[1::2]
            data = bytes(wide)
        elif dtype != "F32":
            sys.exit(f"{path}: {name} is {dtype}, not F32 or BF16")
        values = array.array("f")
        values.frombytes(data)
        if sys.byteorder == "big":
            values.byteswap()
        yield name, values


def sample(values):
    count = len(values)
    return [values[j * STRIDE % count] for j in range(min(SAMPLES, count))]


def write(path, tensors):
    """tensors: name -> (dtype, struct code, values)."""
    header, data = {}, bytearray()
    # float64 first keeps every tensor aligned for its type
    for name in sorted(tensors, key=lambda name: (tensors[name][0] != "F64", name)):
        dtype, code, values = tensors[name]
        begin = len(data)
        data += struct.pack(f"<{len(values)}{code}", *values)
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, output = sys.argv[1:]
    tensors = {}
    for precision in ("fp64", "bf16"):
        for name, values in read_tensors(f"{folder}/expected-{precision}.safetensors"):
            tensors[f"{precision}.{name}"] = ("F32", "f", sample(values))
            norm = math.sqrt(math.fsum(value * value for value in values))
            tensors[f"l2.{precision}.{name}"] = ("F64", "d", [norm, float(len(values))])
    write(f"{output}/tiny-samples.safetensors", tensors)
    hashes = {}
    for path in sorted(glob.glob(f"{folder}/transformer/*.safetensors")):
        hashes.update((name, hashlib.sha256(data).hexdigest()) for name, _, data in read_bytes(path))
    with open(f"{output}/tiny/weights-sha256.json", "w", encoding="ascii") as file:
        json.dump(hashes, file, indent=1, sort_keys=True)
        file.write("\n")


main()
