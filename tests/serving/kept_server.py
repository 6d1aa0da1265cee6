"""python kept_server.py FILE: a server that keeps its state in a file, to be killed."""

import sys
from pathlib import Path

from torch import nn

from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.app import create_app
from e3bm.serving.server import serve
from e3bm.serving.settings import ServeSettings

if __name__ == "__main__":
    network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
    classifier = FewShotClassifier(network, pipeline="resize 28, centre_crop 28, normalise none")
    settings = ServeSettings(port=0, keep=Path(sys.argv[1]))
    serve(create_app(settings, classifier), settings, lambda address: print(address, flush=True))
