"""A model that was sent: the classifier in it, if it needs nothing but what is here already."""

from collections.abc import Sequence
from pathlib import Path

from e3bm.fewshot.feature_extractor import FeatureExtractor
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.model_file import origin_of, read_model
from e3bm.serving.refusals import Refusal
from e3bm.serving.uploads import Upload

SELF_CONTAINED = ("package", "run")


def opened_model(upload: Upload, at_hand: Sequence[FeatureExtractor], prior: Path | None) -> FewShotClassifier:
    """The classifier in an uploaded file; its backbone is one that is at hand, installed, or in the file itself.

    A file can also name a model of a hub, which may be any folder of this machine: no request decides that.
    """
    about, _ = read_model(Path(upload.name), upload.content)
    origin, _, _ = origin_of(Path(upload.name), about)
    known = next((one for one in at_hand if one.origin.digest == origin.digest), None)
    if known is None and origin.kind not in SELF_CONTAINED:
        raise Refusal(
            422,
            f"{upload.name} was made with the backbone '{origin.name}', which is not this server's; "
            "start the server with that model.",
        )
    return FewShotClassifier.from_bytes(upload.content, name=upload.name, backbone=known, prior=prior)
