"""As onnx_photo.py, for a model of networks side by side (lite0+lite2): every network has an input of its own size.

python onnx_two_networks.py birds.onnx PHOTO...
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

if len(sys.argv) < 3:
    sys.exit("usage: python onnx_two_networks.py birds.onnx PHOTO...")
session = onnxruntime.InferenceSession(sys.argv[1])
about = session.get_modelmeta().custom_metadata_map
for path in sys.argv[2:]:
    photo, inputs = ImageOps.exif_transpose(Image.open(path)).convert("RGB"), {}
    for name in (each.name for each in session.get_inputs()):  # pixels, pixels_2
        resize, crop, method = (about[f"{it}{name[6:]}"] for it in ("resize", "crop", "interpolation"))
        width, height = (int(resize) * side // min(photo.size) for side in photo.size)
        small = photo.resize((width, height), Image.Resampling[method.removeprefix("Pillow ")])
        left, top, side = round((width - int(crop)) / 2), round((height - int(crop)) / 2), int(crop)
        inputs[name] = np.asarray(small.crop((left, top, left + side, top + side)))[None]
    shares, label, unknown, *_ = session.run(None, inputs)
    name, remark = json.loads(about["classes"])[label[0]], "looks like none of the classes" if unknown[0] else ""
    print(f"{path}  {name}  {100 * shares[0, label[0]]:.1f} %  {remark}".rstrip())
