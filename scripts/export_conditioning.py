#!/usr/bin/env python3
"""Makes a conditioning file from the published MiniMax-H3 pipeline (diffusers 0.40 or later, the model's weights).

The file holds what generation needs of the prompt and the reference pictures, once and for all:
  text          [rows, 5120] bfloat16   the conditioner's hidden state 50 for the labels, the pictures and the prompt
  text_tags     [rows] int64            1 for text, 0 for rows of a picture
  condition.<i> [1, 24, 1, h, w] float32, or with --keyframes image
  image.<i>     [height, width, 3] uint8, the picture on the canvas, which generation encodes itself

Only the text encoder and the video autoencoder are loaded. PyTorch, torchvision, transformers, accelerate and Pillow are needed
besides; Pillow 13, or some pictures become other bytes than with bin/h3_keyframe. A plan names the file with its SHA-256, which is printed.

  scripts/export_conditioning.py --model MiniMaxAI/MiniMax-H3 --prompt prompt.txt --first fox.png --out conditioning.safetensors

exit codes: 0 written; 1 not finite, 2 usage, 3 missing or damaged input, 4 environment
"""
import argparse
import hashlib
import json
import os
import re
import sys
from pathlib import Path

SIDE_LIMIT = 16384  # pixels; what reads the file takes no larger picture


def fail(code, message):
    print(f"export_conditioning: {message}", file=sys.stderr)
    raise SystemExit(code)


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="MiniMaxAI/MiniMax-H3", help="repository or folder (%(default)s)")
    parser.add_argument("--revision", default="42ed227ee7df40d41602854ae760620d6eb651fe", help="of the repository; not used for a folder (the contract's)")
    parser.add_argument("--prompt", required=True, type=Path, help="text file, UTF-8, taken as it is")
    parser.add_argument("--first", type=Path, help="picture that the video begins with")
    parser.add_argument("--last", type=Path, help="picture that the video ends with")
    parser.add_argument("--canvas", default="1344x768", help="WIDTHxHEIGHT, multiples of 32 (%(default)s)")
    parser.add_argument("--keyframes", choices=("latents", "image"), default="latents", help="how the pictures are stored (%(default)s)")
    parser.add_argument("--device", default="cuda", help="of PyTorch (%(default)s)")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    canvas = re.fullmatch("([0-9]{1,5})x([0-9]{1,5})", arguments.canvas)
    if canvas is None:
        parser.error(f"--canvas {arguments.canvas}: give WIDTHxHEIGHT, for example 1344x768")
    arguments.width, arguments.height = sides = [int(side) for side in canvas.groups()]
    if any(side % 32 or not 32 <= side <= SIDE_LIMIT for side in sides):
        parser.error(f"--canvas {arguments.canvas}: both must be multiples of 32, at most {SIDE_LIMIT}")
    return arguments


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read_prompt(path):
    """The file's bytes and its text. No text is refused: it has no row."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(3, f"--prompt {path}: {error}; give a text file in UTF-8")
    if not text:
        fail(3, f"--prompt {path}: it is empty; write the prompt into it")
    return data, text


def read_picture(option, path):
    from PIL import Image, ImageOps

    try:
        picture = ImageOps.exif_transpose(Image.open(path))
        if picture.mode[0] in "IF":
            fail(3, f"{option} {path}: Pillow makes white of more than 8 bits of grey; save it with 8 bits a colour")
        return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # SyntaxError: damaged, as Pillow says it
        fail(3, f"{option} {path}: {first_line(error)}; give a picture that Pillow reads")


def load_pipeline(arguments, pictures):
    """As much of the published pipeline as makes conditioning, its components on the device."""
    import torch
    from diffusers import MiniMaxH3Blocks, MiniMaxH3ModularPipeline
    from diffusers.modular_pipelines import SequentialPipelineBlocks

    try:
        torch.empty(0, device=arguments.device)
    except (AssertionError, RuntimeError) as error:  # AssertionError: PyTorch without CUDA
        fail(4, f"--device {arguments.device}: {first_line(error)}; name a device that is here, for example cpu")
    where = {} if Path(arguments.model).is_dir() else {"revision": arguments.revision}
    blocks = MiniMaxH3Blocks().get_workflow("fl2va" if pictures else "t2va").sub_blocks
    names = ["text_encoder"]
    if pictures:
        names = ["before_encode", *names, *(["vae_encoder"] if arguments.keyframes == "latents" else [])]
    try:
        pipeline = MiniMaxH3ModularPipeline(SequentialPipelineBlocks.from_blocks_dict({name: blocks[name] for name in names}), arguments.model, **where)
    except OSError as error:
        fail(3, f"--model {arguments.model}: {first_line(error)}; name a repository or a folder of the diffusers kind")
    # The index of the repository names its home without a revision; here every component is of the place and revision asked for.
    # The autoencoder's goldens are FP32.
    pipeline.load_components(pretrained_model_name_or_path=arguments.model, revision=where.get("revision"), dtype={"text_encoder": torch.bfloat16, "vae": torch.float32})
    absent = sorted(name for name, component in pipeline.components.items() if component is None)
    if absent:  # diffusers warns and goes on
        fail(3, f"--model {arguments.model}: {', '.join(absent)} could not be loaded (see above); get the whole model, install what is asked for")
    return pipeline.to(arguments.device), where


def export(arguments):
    prompt, text = read_prompt(arguments.prompt)
    # A device would be replaced, not written.
    if not arguments.out.absolute().parent.is_dir() or (arguments.out.exists() and not arguments.out.is_file()):
        fail(2, f"--out {arguments.out}: give the name of a file in a folder that is there")
    try:
        import numpy
        import PIL
        import torch

        images = {name: read_picture(option, path) for name, option, path in (("image", "--first", arguments.first), ("last_image", "--last", arguments.last)) if path}
        # Strict FP32; cuDNN would take TF32 by itself.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        pipeline, where = load_pipeline(arguments, bool(images))
    except ImportError as error:
        fail(4, f"{first_line(error)}; install PyTorch, torchvision, transformers, accelerate, Pillow 13 and diffusers 0.40 or later")

    canvas = {"height": arguments.height, "width": arguments.width} if images else {}
    state = pipeline(prompt=text, **images, **canvas)
    tensors = {"text": state.get("prompt_embeds")[0].cpu(), "text_tags": state.get("text_token_tags").to(torch.int64).cpu()}
    model = Path(arguments.model).resolve().name if where == {} else arguments.model
    metadata = {"format": "h3-conditioning-v1", "model": model, **where, "prompt_sha256": sha256(prompt), "canvas": arguments.canvas}
    if images:
        metadata["pillow"] = PIL.__version__  # version 13 resamples some pictures to other bytes than 12
    for number, picture in enumerate(state.get("keyframes") or []):
        pixels = numpy.array(picture)
        metadata[f"canvas_sha256.{number}"] = sha256(pixels.tobytes())
        if arguments.keyframes == "image":
            tensors[f"image.{number}"] = torch.from_numpy(pixels)
        else:
            tensors[f"condition.{number}"] = state.get("condition_latents")[number]
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor.float()).all()):
            fail(1, f"{name} has values that are not finite; nothing was written, look at the model's files")
    kinds = {torch.bfloat16: "BF16", torch.int64: "I64", torch.float32: "F32", torch.uint8: "U8"}
    entries = {name: (kinds[tensor.dtype], list(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes()) for name, tensor in tensors.items()}
    return entries, metadata


def safetensors(entries, metadata):
    """The file of {name: (type, shape, bytes)}. The library's own writer shuffles the metadata: no two files had one digest."""
    header, data = {"__metadata__": metadata}, b""
    for name, (kind, shape, content) in entries.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def publish(path, data):
    """The whole file or none."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        fail(4, f"--out {path}: {error}; make room or choose another place")


def main():
    arguments = parse_arguments()
    entries, metadata = export(arguments)
    data = safetensors(entries, metadata)
    publish(arguments.out, data)
    anchors = [name for name, path in (("first", arguments.first), ("last", arguments.last)) if path]
    print(json.dumps(metadata, indent=1))
    print(f'layout: "text": {entries["text"][1][0]}, "h": {arguments.height // 16}, "w": {arguments.width // 16}, "anchors": {json.dumps(anchors)}')
    print(f'plan:   "conditioning": {{"file": "{arguments.out}", "sha256": "{sha256(data)}"}}')


if __name__ == "__main__":
    sys.exit(main())
