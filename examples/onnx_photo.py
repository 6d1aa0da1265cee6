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
for path in sys.argv[2:]:
    photo, inputs = ImageOps.exif_transpose(Image.open(path)).convert("RGB"), {}
    for name in (each.name for each in session.get_inputs()):  # several where networks stand side by side
        resize, crop, method = (about[f"{it}{name[6:]}"] for it in ("resize", "crop", "interpolation"))
        width, height = (int(resize) * side // min(photo.size) for side in photo.size)
        small = photo.resize((width, height), Image.Resampling[method.removeprefix("Pillow ")])
        left, top, side = round((width - int(crop)) / 2), round((height - int(crop)) / 2), int(crop)
        inputs[name] = np.asarray(small.crop((left, top, left + side, top + side)))[None]
    shares, label, unknown, *_ = session.run(None, inputs)
    name, remark = json.loads(about["classes"])[label[0]], "looks like none of the classes" if unknown[0] else ""
    print(f"{path}  {name}  {100 * shares[0, label[0]]:.1f} %  {remark}".rstrip())
