#!/usr/bin/env python3
"""Makes a conditioning file from the published MiniMax-H3 pipeline (diffusers, PyTorch, the model's weights).

The file holds what generation needs of the prompt and the reference pictures, once and for all:
  text          [rows, 5120] bfloat16   the conditioner's hidden state 50 for the labels, the pictures and the prompt
  text_tags     [rows] int64            1 for text, 0 for rows of a picture
  condition.<i> [1, 24, 1, h, w] float32, or with --keyframes image
  image.<i>     [height, width, 3] uint8, the picture on the canvas, which generation encodes itself

Only the text encoder and the video autoencoder are loaded. A plan names the file with its SHA-256, which is printed.

  scripts/export_conditioning.py --model MiniMaxAI/MiniMax-H3 --prompt prompt.txt --first fox.png --out conditioning.safetensors
"""
import argparse
import hashlib
import json
import sys
from pathlib import Path


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="MiniMaxAI/MiniMax-H3", help="repository or folder (%(default)s)")
    parser.add_argument("--revision", default="42ed227ee7df40d41602854ae760620d6eb651fe", help="of the repository; not used for a folder (the contract's)")
    parser.add_argument("--prompt", required=True, type=Path, help="text file, UTF-8, taken as it is")
    parser.add_argument("--first", type=Path, help="picture that the video begins with")
    parser.add_argument("--last", type=Path, help="picture that the video ends with")
    parser.add_argument("--canvas", default="1344x768", help="WIDTHxHEIGHT, multiples of 32 (%(default)s)")
    parser.add_argument("--keyframes", choices=("latents", "image"), default="latents", help="how the pictures are stored (%(default)s)")
    parser.add_argument("--device", default="cuda", help="(%(default)s)")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    try:
        arguments.width, arguments.height = (int(number) for number in arguments.canvas.split("x"))
    except ValueError:
        parser.error(f"--canvas {arguments.canvas}: give WIDTHxHEIGHT, for example 1344x768")
    if min(arguments.width, arguments.height) < 32 or arguments.width % 32 or arguments.height % 32:
        parser.error(f"--canvas {arguments.canvas}: both must be multiples of 32")
    return arguments


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read_pictures(arguments, prepare):
    """The pictures on the canvas: the first one given is stretched, a second one covers it and is cropped."""
    from PIL import Image, ImageOps

    pictures = [ImageOps.exif_transpose(Image.open(path)).convert("RGB") for path in (arguments.first, arguments.last) if path]
    return [prepare(picture, arguments.height, arguments.width, stretch=number == 0) for number, picture in enumerate(pictures)]


def latents_of(rows, pictures, channels, height, width):
    """Packed rows [pictures * h/2 * w/2, 4 * channels] back to one [1, channels, 1, h, w] a picture."""
    grids = rows.float().cpu().reshape(pictures, height // 2, width // 2, channels, 2, 2)
    return [grid.permute(2, 0, 3, 1, 4).reshape(1, channels, 1, height, width).contiguous() for grid in grids]


def export(arguments):
    import numpy
    import torch
    from diffusers import ModularPipeline
    from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3KeyframeVaeEncoderStep, MiniMaxH3TextEncoderStep
    from diffusers.modular_pipelines.minimax_h3.packing import prepare_keyframe_image
    from safetensors.torch import save_file

    # The autoencoder's goldens are strict FP32; cuDNN would take TF32 by itself.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    prompt = arguments.prompt.read_bytes()
    pictures = read_pictures(arguments, prepare_keyframe_image)
    where = {} if Path(arguments.model).is_dir() else {"revision": arguments.revision}
    pipeline = ModularPipeline.from_pretrained(arguments.model, **where)
    pipeline.load_components(names=["text_encoder", "tokenizer", "processor"], torch_dtype=torch.bfloat16)
    if pictures and arguments.keyframes == "latents":
        pipeline.load_components(names=["vae"], torch_dtype=torch.float32)
    pipeline.to(arguments.device)

    metadata = {"format": "h3-conditioning-v1", "model": arguments.model, **where, "prompt_sha256": sha256(prompt), "canvas": arguments.canvas}
    with torch.no_grad():
        text, tags = MiniMaxH3TextEncoderStep.encode_prompt(pipeline, prompt.decode("utf-8"), pictures, device=arguments.device, dtype=torch.bfloat16)
        tensors = {"text": text[0].cpu().contiguous(), "text_tags": tags.to(torch.int64).cpu()}
        if pictures and arguments.keyframes == "latents":
            rows = MiniMaxH3KeyframeVaeEncoderStep.encode_keyframes(pipeline, pictures, device=arguments.device)
            channels = pipeline.vae.config.latent_channels
            for number, latents in enumerate(latents_of(rows, len(pictures), channels, arguments.height // 16, arguments.width // 16)):
                tensors[f"condition.{number}"] = latents
    for number, picture in enumerate(pictures):
        pixels = numpy.array(picture)
        metadata[f"canvas_sha256.{number}"] = sha256(pixels.tobytes())
        if arguments.keyframes == "image":
            tensors[f"image.{number}"] = torch.from_numpy(pixels)
    if not all(bool(torch.isfinite(tensor.float()).all()) for tensor in tensors.values()):
        raise ValueError("a value is not finite; nothing was written")
    save_file(tensors, str(arguments.out), metadata=metadata)
    return tensors, metadata


def main():
    arguments = parse_arguments()
    tensors, metadata = export(arguments)
    anchors = [name for name, path in (("first", arguments.first), ("last", arguments.last)) if path]
    print(json.dumps(metadata, indent=1))
    print(f'layout: "text": {len(tensors["text"])}, "h": {arguments.height // 16}, "w": {arguments.width // 16}, "anchors": {json.dumps(anchors)}')
    print(f'plan:   "conditioning": {{"file": "{arguments.out}", "sha256": "{sha256(arguments.out.read_bytes())}"}}')


if __name__ == "__main__":
    sys.exit(main())
