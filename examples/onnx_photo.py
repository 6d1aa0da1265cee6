"""A model of `e3bm export`, used with onnxruntime and Pillow alone: python onnx_photo.py birds.onnx PHOTO...

ORT_DISABLE_TELEMETRY=1 in the environment keeps onnxruntime from reporting that it is used.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
about = session.get_modelmeta().custom_metadata_map
size, crop, method = int(about["resize"]), int(about["crop"]), about["interpolation"].removeprefix("Pillow ")
for path in sys.argv[2:]:
    photo = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    width, height = (size * side // min(photo.size) for side in photo.size)
    left, top = round((width - crop) / 2), round((height - crop) / 2)
    small = photo.resize((width, height), Image.Resampling[method]).crop((left, top, left + crop, top + crop))
    shares, label, unknown, *_ = session.run(None, {"pixels": np.asarray(small)[None]})
    name, remark = json.loads(about["classes"])[label[0]], "looks like none of the classes" if unknown[0] else ""
    print(f"{path}  {name}  {100 * shares[0, label[0]]:.1f} %  {remark}".rstrip())
