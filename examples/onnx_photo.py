"""A model of `e3bm export`, used with onnxruntime and Pillow alone: python onnx_photo.py birds.onnx PHOTO...

ORT_DISABLE_TELEMETRY=1 in the environment keeps onnxruntime from reporting that it is used. A model of two networks
side by side (lite0+lite2) has two inputs: see onnx_two_networks.py.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model, *photos = sys.argv[1:] if len(sys.argv) > 2 else sys.exit("usage: python onnx_photo.py birds.onnx PHOTO...")
about = (session := onnxruntime.InferenceSession(model)).get_modelmeta().custom_metadata_map
short, crop, method = int(about["resize"]), int(about["crop"]), about["interpolation"].removeprefix("Pillow ")
for path in photos:
    photo = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    size = [short * side // min(photo.size) for side in photo.size]
    left, top = (round((side - crop) / 2) for side in size)
    small = photo.resize(size, Image.Resampling[method]).crop((left, top, left + crop, top + crop))
    shares, label, unknown, *_ = session.run(None, {"pixels": np.asarray(small)[None]})
    print(path, json.loads(about["classes"])[label[0]], f"{100 * shares.max():.1f} %", "unknown" if unknown[0] else "")
