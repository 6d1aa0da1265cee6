"""Omniglot: 1,623 characters of 50 alphabets, each drawn by 20 people, in the split of Vinyals et al."""

from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.folders import AlphabetFolders
from e3bm.data.source import SOURCES, Download, SourceCard, SplitCount, class_list

ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"


@SOURCES.register("omniglot")
class Omniglot:
    """1,028, 172 and 423 characters; packed at 28 px with light ink, as is the custom, from drawings of 105 px."""

    card = SourceCard(
        title="Omniglot",
        image_size=28,
        accepted_sizes=(105, 28),
        channels=1,
        licence="MIT",
        citation="Lake, Salakhutdinov and Tenenbaum, Human-level concept learning through probabilistic program "
        "induction, Science 350, 2015; split: Vinyals et al., Matching Networks for One Shot Learning, NeurIPS 2016",
        published={"train": SplitCount(1_028, 20_560), "val": SplitCount(172, 3_440), "test": SplitCount(423, 8_460)},
        images_per_class=20,
        total_images=32_460,
        ink_is_light=True,
        downloads=(
            Download(
                ADDRESS + "images_background.zip",
                "images_background.zip",
                "md5:68d2efa1b9178cc56df9314c21c6e718",
                "torchvision's loader",
            ),
            Download(
                ADDRESS + "images_evaluation.zip",
                "images_evaluation.zip",
                "md5:6b91aef0f799c5bb55b94e3f2daec811",
                "torchvision's loader",
            ),
        ),
        homepage="https://github.com/brendenlake/omniglot",
        archive_patterns=("*images_background*", "*images_evaluation*", "omniglot*"),
    )
    layouts = (AlphabetFolders(),)

    def known_classes(self) -> KnownClasses:
        """Characters as alphabet/characterNN; the lists give the range of each alphabet in each split."""
        split_of: dict[str, str] = {}
        for split, alphabets in class_list("omniglot").items():
            for alphabet, bounds in alphabets.items():
                first, last = (int(bound) for bound in bounds.split("-"))
                split_of.update({f"{alphabet}/character{n:02d}": split for n in range(first, last + 1)})
        return KnownClasses(split_of)
