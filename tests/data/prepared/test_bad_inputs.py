"""More than 200 bad inputs: each is one clear sentence, and nothing half-written stays behind."""

import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from e3bm.data.inspect.doctor import doctor
from e3bm.data.read.prepare import prepare
from e3bm.errors import DataError, E3BMError, SettingsError

CASES: dict[str, tuple] = {}
"""Name -> (data set, function that writes the source into a folder and returns it, settings)."""


def case(name, dataset="fc100", **settings):
    def add(function):
        assert name not in CASES, name
        CASES[name] = (dataset, function, settings)
        return function

    return add


@cache
def good(kind: str, write_key: int = 0) -> dict[str, bytes]:
    """The files of a small, right data set in a layout."""
    write = WRITERS[0]
    fc, mini, tiered = write.small("fc100"), write.small("miniimagenet"), write.small("tieredimagenet", per_class=1)
    return {
        "split folders": lambda: write.split_folders(fc),
        "class folders": lambda: write.class_folders(fc, ""),
        "csv": lambda: write.csv_images(mini),
        "labelled": lambda: write.labelled_pickles(fc, "FC100"),
        "cache": lambda: write.cache_pickles(mini),
        "png": lambda: write.png_pickles(tiered),
        "npz": lambda: write.npz_images(tiered),
        "cifar": lambda: write.cifar_archive(fc),
        "omniglot": lambda: write.alphabet_folders(write.small("omniglot", per_class=1)),
        "own": lambda: {
            f"{label}/{k}.png": write.png(np.full((9, 9, 3), 20 * k, np.uint8)) for label in "abcdef" for k in range(3)
        },
    }[kind]()


WRITERS: list[SimpleNamespace] = []
DATASET = {
    "split folders": "fc100",
    "class folders": "fc100",
    "csv": "miniimagenet",
    "labelled": "fc100",
    "cache": "miniimagenet",
    "png": "tieredimagenet",
    "npz": "tieredimagenet",
    "cifar": "fc100",
    "omniglot": "omniglot",
    "own": "mine",
}


def changed(kind: str, **changes):
    """The good files with some added or replaced; None removes one."""
    return {name: content for name, content in {**good(kind), **changes}.items() if content is not None}


def tree(path, files, container="folder"):
    return WRITERS[0].tree(path / "source", files, container)


# Cut short -----------------------------------------------------------------------------------------------------------
for container in ("zip", "tar", "tar.gz"):
    for percent in (0, 1, 10, 30, 50, 70, 90, 97):

        @case(f"{container} cut to {percent} %")
        def _(path, container=container, percent=percent):
            source = tree(path, good("split folders"), container)
            content = source.read_bytes()
            end = len(content) if container != "tar" else content.rindex(b"IEND")
            source.write_bytes(content[: end * percent // 100])
            return source


BIG = {
    "labelled": "FC100_val.pickle",
    "cache": "mini-imagenet-cache-val.pkl",
    "png": "tiered-imagenet/val_images_png.pkl",
    "npz": "val_images.npz",
    "cifar": "cifar-100-python/test",
}
for kind, name in BIG.items():
    for percent in (0, 2, 20, 60, 99):

        @case(f"{kind}: {name} cut to {percent} %", DATASET[kind])
        def _(path, kind=kind, name=name, percent=percent):
            return tree(path, changed(kind, **{name: good(kind)[name][: len(good(kind)[name]) * percent // 100]}))


for kind, name in {
    "png": "tiered-imagenet/test_labels.pkl",
    "npz": "test_labels.pkl",
    "cifar": "cifar-100-python/meta",
}.items():

    @case(f"{kind}: {name} cut short", DATASET[kind])
    def _(path, kind=kind, name=name):
        return tree(path, changed(kind, **{name: good(kind)[name][:-5]}))


# Something else than it says -----------------------------------------------------------------------------------------
JUNK = {
    "html": b"<!DOCTYPE html><title>404</title>",
    "text": b"quota exceeded\n" * 99,
    "zeros": bytes(5000),
    "zip head": b"PK\x03\x04" + bytes(99),
    "gzip head": b"\x1f\x8b\x08" + b"\xff" * 99,
    "empty": b"",
}
for suffix in (".zip", ".tar", ".tar.gz"):
    for kind, content in JUNK.items():

        @case(f"{kind} named {suffix}")
        def _(path, suffix=suffix, content=content):
            (path / f"data{suffix}").write_bytes(content)
            return path / f"data{suffix}"


for kind, name in BIG.items():
    for junk in ("html", "zeros", "zip head"):

        @case(f"{kind}: {name} is {junk}", DATASET[kind])
        def _(path, kind=kind, name=name, junk=junk):
            return tree(path, changed(kind, **{name: JUNK[junk]}))


# Names that escape ---------------------------------------------------------------------------------------------------
ESCAPES = [
    "../../evil.png",
    "/etc/evil.png",
    "train/../../evil.png",
    "C:/evil.png",
    "train\\apple\\evil.png",
    "train/a\nb/x.png",
]
for name in ESCAPES:
    for container in ("zip", "tar"):

        @case(f"{container} with {name!r}")
        def _(path, name=name, container=container):
            if container == "tar":
                return tree(path, {**good("split folders"), name: b"x"}, "tar")
            mark = "y" * len(name)
            source = tree(path, {**good("split folders"), mark: b"x"}, "zip")
            source.write_bytes(source.read_bytes().replace(mark.encode(), name.encode()))
            return source


for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):

    @case(f"tar with a member of type {kind!r}")
    def _(path, kind=kind):
        with tarfile.open(path / "x.tar", "w") as archive:
            member = tarfile.TarInfo("train/apple/1.png")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        return path / "x.tar"


@case("zip with a link")
def _(path):
    with zipfile.ZipFile(path / "x.zip", "w") as archive:
        member = zipfile.ZipInfo("train/apple/1.png")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    return path / "x.zip"


# Hostile pickles -----------------------------------------------------------------------------------------------------
class Call:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


HOSTILE = {
    "os.system": Call(os.system, "touch ran"),
    "eval": Call(eval, "open('ran', 'w')"),
    "open": Call(open, "ran", "w"),
    "import": Call(__import__, "antigravity"),
}
VICTIMS = {
    "labelled": "FC100_train.pickle",
    "cache": "mini-imagenet-cache-train.pkl",
    "png": "tiered-imagenet/train_images_png.pkl",
    "npz": "train_labels.pkl",
    "cifar": "cifar-100-python/train",
}
for kind, name in VICTIMS.items():
    for what, call in HOSTILE.items():

        @case(f"{kind}: {what} in {name}", DATASET[kind])
        def _(path, kind=kind, name=name, call=call):
            old = pickle.loads(good(kind)[name])
            new = {**old, "extra": call} if isinstance(old, dict) else [*old, call]
            return tree(path, changed(kind, **{name: pickle.dumps(new, 2)}), "zip")


@case("cifar: code in meta")
def _(path):
    return tree(path, changed("cifar", **{"cifar-100-python/meta": pickle.dumps(HOSTILE["eval"])}))


for opcode in (
    b"(S'touch ran'\nios\nsystem\n.",
    b"cposix\nsystem\n(S'touch ran'\ntR.",
    b"Pany\n.",
    b"\x80\x02\x82\x01.",
):

    @case(f"labelled: raw {opcode!r}")
    def _(path, opcode=opcode):
        return tree(path, changed("labelled", **{"FC100_train.pickle": opcode}))


@case("npz: an array of objects", "tieredimagenet")
def _(path):
    buffer = io.BytesIO()
    np.savez(buffer, images=np.array([{}], object))
    return tree(path, changed("npz", **{"train_images.npz": buffer.getvalue()}))


# Counts that do not fit ----------------------------------------------------------------------------------------------
def labelled(edit):
    def write(path):
        content = pickle.loads(good("labelled")["FC100_val.pickle"])
        edit(content)
        return tree(path, changed("labelled", **{"FC100_val.pickle": pickle.dumps(content, 2)}))

    return write


LABEL_FAULTS = {
    "one label too few": lambda c: c["labels"].pop(),
    "one label too many": lambda c: c["labels"].append(3),
    "no labels": lambda c: c.pop("labels"),
    "no data": lambda c: c.pop("data"),
    "labels are text": lambda c: c.update(labels=["a"] * 40),
    "labels are floats": lambda c: c.update(labels=np.zeros(40)),
    "labels are nothing": lambda c: c.update(labels=None),
    "labels nested": lambda c: c.update(labels=[[1]] * 40),
    "data is a list": lambda c: c.update(data=[1, 2, 3]),
    "data is text": lambda c: c.update(data="pixels"),
    "data is floats": lambda c: c.update(data=np.zeros((40, 32, 32, 3), np.float32)),
    "data is flat": lambda c: c.update(data=np.zeros(40, np.uint8)),
    "data has five dimensions": lambda c: c.update(data=np.zeros((40, 1, 32, 32, 3), np.uint8)),
    "data has seven channels": lambda c: c.update(data=np.zeros((40, 32, 32, 7), np.uint8)),
    "data has no pixels": lambda c: c.update(data=np.zeros((40, 0, 0, 3), np.uint8)),
    "data has no images": lambda c: c.update(data=np.zeros((0, 32, 32, 3), np.uint8), labels=[]),
    "data column by column": lambda c: c.update(data=np.asfortranarray(c["data"])),
    "data too small": lambda c: c.update(data=np.zeros((40, 28, 28, 3), np.uint8)),
    "data not square": lambda c: c.update(data=np.zeros((40, 32, 40, 3), np.uint8)),
    "a class short": lambda c: c.update(labels=[c["labels"][0]] * 4 + c["labels"][4:]),
}
for what, edit in LABEL_FAULTS.items():
    case(f"labelled: {what}")(labelled(edit))


def cached(edit):
    def write(path):
        name = "mini-imagenet-cache-test.pkl"
        content = pickle.loads(good("cache")[name])
        edit(content["class_dict"], content)
        return tree(path, changed("cache", **{name: pickle.dumps(content, 4)}))

    return write


FIRST = "n01930112"
DICT_FAULTS = {
    "an image in no class": lambda d, c: d[FIRST].pop(),
    "an image in two classes": lambda d, c: d[FIRST].append(d["n01981276"][0]),
    "an image twice": lambda d, c: d[FIRST].append(d[FIRST][0]),
    "an image that is not there": lambda d, c: d[FIRST].append(40),
    "a negative image": lambda d, c: d[FIRST].append(-1),
    "an empty class": lambda d, c: d.update(n99999999=[]),
    "text for an image": lambda d, c: d.update({FIRST: ["a", "b"]}),
    "a number for a list": lambda d, c: d.update({FIRST: 7}),
    "no classes": lambda d, c: d.clear(),
    "a list for the dictionary": lambda d, c: c.update(class_dict=[1, 2]),
    "an unknown class": lambda d, c: d.update(n00000000=d.pop(FIRST)),
    "a class of another split": lambda d, c: d.update(n01532829=d.pop(FIRST)),
}
for what, edit in DICT_FAULTS.items():
    case(f"cache: {what}", "miniimagenet")(cached(edit))


def cifar(edit):
    def write(path):
        content = pickle.loads(good("cifar")["cifar-100-python/train"], encoding="bytes")
        edit(content)
        return tree(path, changed("cifar", **{"cifar-100-python/train": pickle.dumps(content, 2)}))

    return write


case("cifar: a label too high")(cifar(lambda c: c[b"fine_labels"].__setitem__(0, 100)))
case("cifar: a negative label")(cifar(lambda c: c[b"fine_labels"].__setitem__(0, -1)))
case("cifar: a label missing")(cifar(lambda c: c[b"fine_labels"].pop()))
case("cifar: CIFAR-10's keys")(cifar(lambda c: c.update({b"labels": c.pop(b"fine_labels")})))
case("cifar: rows too short")(cifar(lambda c: c.update({b"data": c[b"data"][:, :3000]})))
case("cifar: uneven classes")(cifar(lambda c: c[b"fine_labels"].__setitem__(0, 1)))


@case("cifar: a foreign class name")
def _(path):
    names = {b"fine_label_names": [b"dragon"] * 100}
    return tree(path, changed("cifar", **{"cifar-100-python/meta": pickle.dumps(names, 2)}))


for kind, name in {"png": "tiered-imagenet/val_labels.pkl", "npz": "val_labels.pkl"}.items():
    for what, content in {
        "missing": None,
        "a list": pickle.dumps([1, 2]),
        "other keys": pickle.dumps({"x": 1}),
        "too few": pickle.dumps({"labels": [1, 2, 3]}),
    }.items():

        @case(f"{kind}: labels {what}", "tieredimagenet")
        def _(path, kind=kind, name=name, content=content):
            return tree(path, changed(kind, **{name: content}))


@case("png: a number among the images", "tieredimagenet")
def _(path):
    name = "tiered-imagenet/val_images_png.pkl"
    return tree(path, changed("png", **{name: pickle.dumps([*pickle.loads(good("png")[name])[1:], 7], 2)}))


@case("png: a dictionary of images", "tieredimagenet")
def _(path):
    return tree(path, changed("png", **{"tiered-imagenet/val_images_png.pkl": pickle.dumps({"a": b"b"}, 2)}))


@case("png: one image broken", "tieredimagenet")
def _(path):
    name = "tiered-imagenet/val_images_png.pkl"
    images = pickle.loads(good("png")[name])
    images[3] = images[3][:50]
    return tree(path, changed("png", **{name: pickle.dumps(images, 2)}))


@case("npz: another array name", "tieredimagenet")
def _(path):
    buffer = io.BytesIO()
    np.savez(buffer, pictures=np.zeros((97, 84, 84, 3), np.uint8))
    return tree(path, changed("npz", **{"val_images.npz": buffer.getvalue()}))


@case("npz: a shape that lies", "tieredimagenet")
def _(path):
    content = good("npz")["val_images.npz"]
    return tree(path, changed("npz", **{"val_images.npz": content.replace(b"(97, 84, 84, 3)", b"(99, 84, 84, 3)")}))


def without(kind, part, dataset=None):
    @case(f"{kind}: without {part}", dataset or DATASET[kind])
    def _(path):
        return tree(path, {name: content for name, content in good(kind).items() if part not in name})


def plus(kind, name, what, content=None, dataset=None):
    @case(f"{kind}: {what}", dataset or DATASET[kind])
    def _(path):
        return tree(path, {**good(kind), name: content if content is not None else next(iter(good("own").values()))})


without("split folders", "train/apple/apple_0")
without("split folders", "train/apple/")
without("split folders", "test/b")
without("class folders", "apple/")
without("csv", "images/n0153282900000000")
without("csv", "images/")
without("omniglot", "Futurama/character01")
without("omniglot", "Futurama/")
plus("split folders", "train/apple/more.png", "one image more")
plus("split folders", "train/dragon/1.png", "an unknown class")
plus("split folders", "train/1.png", "an image in no class")
plus("split folders", "copy/train/apple/1.png", "a second place")
plus("split folders", "test/apple/1.png", "a class in two splits")
plus("split folders", "val/dragon/readme.txt", "a class without images", b"nothing here")
plus("class folders", "dragon/1.png", "an unknown class")
plus("class folders", "whale/3.png", "one image more")
plus("omniglot", "images_background/Klingon/character01/0001_01.png", "an unknown alphabet")
plus("omniglot", "copy/Futurama/character01/0001_01.png", "a character in two places")
plus("own", "1.png", "an image in no class")
plus("own", "g/readme.txt", "a class without images", b"nothing here")
plus("labelled", "old/FC100_train.pickle", "two pickles for a split", b"")
plus("npz", "old/train_images.npz", "two arrays for a split", b"")

HEADER = "filename,label\n"
FILE = "n0153282900000000.jpg"
TABLES = {
    "a file that is not there": HEADER + "missing.jpg,n01532829\n",
    "a line twice": HEADER + f"{FILE},n01532829\n" * 2,
    "an incomplete line": HEADER + f"{FILE}\n",
    "a line too long": HEADER + f"{FILE},n01532829,x\n",
    "an empty label": HEADER + f"{FILE},\n",
    "other columns": "path,label\n" + f"{FILE},n01532829\n",
    "no lines": HEADER,
    "an unknown class": HEADER + f"{FILE},n00000000\n",
    "a class of another split": HEADER + f"{FILE},n01855672\n",
    "an open quote": HEADER + f'"{FILE},n01532829\n',
    "a zero byte": HEADER + "a\0b.jpg,n01532829\n",
}
for what, text in TABLES.items():

    @case(f"csv: {what}", "miniimagenet")
    def _(path, text=text):
        return tree(path, changed("csv", **{"split/train.csv": text.encode()}))


@case("csv: not UTF-8", "miniimagenet")
def _(path):
    return tree(path, changed("csv", **{"split/train.csv": HEADER.encode() + b"kl\xe4sse.jpg,n01532829\n"}))


@case("csv: tables in two places", "miniimagenet")
def _(path):
    return tree(path, changed("csv", **{"old/train.csv": (HEADER + f"{FILE},n01532829\n").encode()}))


@case("csv: a name in two folders", "miniimagenet")
def _(path):
    return tree(path, changed("csv", **{f"copy/{FILE}": good("csv")[f"images/{FILE}"]}))


# Sizes ---------------------------------------------------------------------------------------------------------------
def sized(kind, name, shape, what):
    @case(f"{kind}: {what}", DATASET[kind])
    def _(path):
        return tree(path, changed(kind, **{name: WRITERS[0].png(np.zeros(shape, np.uint8))}))


sized("split folders", "train/apple/apple_1.png", (33, 33, 3), "one image larger")
sized("split folders", "val/bear/bear_1.png", (32, 31, 3), "one image not square")
sized("split folders", "test/whale/whale_1.png", (84, 84, 3), "one image of another data set")
sized("csv", "images/n0153282900000001.jpg", (32, 32, 3), "one image smaller")
sized("omniglot", "images_background/Futurama/character02/9999_00.png", (50, 50), "one drawing smaller")


@case("labelled: splits of two sizes")
def _(path):
    content = pickle.loads(good("labelled")["FC100_test.pickle"])
    content["data"] = np.zeros((40, 84, 84, 3), np.uint8)
    return tree(path, changed("labelled", **{"FC100_test.pickle": pickle.dumps(content, 2)}))


# Broken images -------------------------------------------------------------------------------------------------------
def png_that_says(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"0")), (b"IEND", b""))
    packed = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


IMAGES = {
    "empty": b"",
    "text": b"this is no image",
    "half": lambda image: image[: len(image) // 2],
    "head only": lambda image: image[:20],
    "wrong bytes": lambda image: image[:40] + bytes(20) + image[60:],
    "100,000 x 100,000": png_that_says(100_000, 100_000),
    "9,000 x 9,000": png_that_says(9_000, 9_000),
    "60,000 x 5": png_that_says(60_000, 5),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "zip": b"PK\x03\x04",
}
for what, content in IMAGES.items():
    for kind, name in {"own": "c/1.png", "split folders": "train/apple/apple_1.png"}.items():

        @case(f"{kind}: an image that is {what}", DATASET[kind])
        def _(path, kind=kind, name=name, content=content):
            image = content if isinstance(content, bytes) else content(good(kind)[name])
            return tree(path, changed(kind, **{name: image}), "zip")


@case("zip: an image with a wrong checksum")
def _(path):
    with zipfile.ZipFile(path / "x.zip", "w") as archive:
        for name, content in good("split folders").items():
            archive.writestr(name, content)
    content = (path / "x.zip").read_bytes()
    place = content.index(b"IDAT") + 8
    (path / "x.zip").write_bytes(content[:place] + b"\x55" + content[place + 1 :])
    return path / "x.zip"


# Names, doubles, nothing ---------------------------------------------------------------------------------------------
@case("folder: a name that is not UTF-8", "mine")
def _(path):
    source = tree(path, good("own"))
    os.mkdir(os.fsencode(source) + b"/kl\xe4sse")
    return source


@case("zip: a name that is not UTF-8", "mine")
def _(path):
    source = tree(path, {**good("own"), "klXsse/1.png": b"x"}, "zip")
    source.write_bytes(source.read_bytes().replace(b"klXsse", b"kl\xe4sse"))
    return source


@case("tar: a name that is not UTF-8", "mine")
def _(path):
    with tarfile.open(path / "x.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin1") as archive:
        archive.addfile(tarfile.TarInfo("klässe/1.png"))
    return path / "x.tar"


@case("zip: a name twice")
def _(path):
    import warnings

    with warnings.catch_warnings(), zipfile.ZipFile(path / "x.zip", "w") as archive:
        warnings.simplefilter("ignore")
        for name, content in [*good("split folders").items(), *list(good("split folders").items())[:1]]:
            archive.writestr(name, content)
    return path / "x.zip"


@case("zip: an encrypted member")
def _(path):
    source = tree(path, good("split folders"), "zip")
    content = bytearray(source.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + offset] |= 1
    source.write_bytes(bytes(content))
    return source


@case("zip: a bomb")
def _(path):
    with (
        zipfile.ZipFile(path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("FC100_train.pickle", "w") as file,
    ):
        for _ in range(70):
            file.write(bytes(1 << 20))
    return path / "x.zip"


@case("folder: an empty class", "mine")
def _(path):
    source = tree(path, good("own"))
    (source / "g").mkdir()
    return source


@case("zip: an empty class", "mine")
def _(path):
    source = tree(path, good("own"), "zip")
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr("g/", b"")
    return source


@case("folder: an empty class in a split")
def _(path):
    source = tree(path, good("split folders"))
    (source / "train" / "dragon").mkdir()
    return source


@case("omniglot: an empty character", "omniglot")
def _(path):
    source = tree(path, good("omniglot"))
    (source / "images_background" / "Futurama" / "character99").mkdir()
    return source


for dataset in ("fc100", "cifar-fs", "miniimagenet", "tieredimagenet", "omniglot", "cub", "mine"):

    @case(f"nothing there for {dataset}", dataset)
    def _(path):
        return path / "nowhere"

    @case(f"an empty folder for {dataset}", dataset)
    def _(path):
        (path / "empty").mkdir()
        return path / "empty"

    @case(f"a folder of texts for {dataset}", dataset)
    def _(path):
        return tree(path, {"readme.txt": b"hello", "a/b.md": b"hello"})


@case("own: one class only", "mine")
def _(path):
    return tree(path, {name: content for name, content in good("own").items() if name.startswith("a/")})


@case("own: too few classes to divide", "mine")
def _(path):
    return tree(path, {name: content for name, content in good("own").items() if name[0] in "abc"})


@case("own: a single image", "mine")
def _(path):
    source = tree(path, good("own"))
    return source / "a" / "1.png"


for dataset, kind in [
    ("fc100", "csv"),
    ("miniimagenet", "split folders"),
    ("omniglot", "own"),
    ("cub", "own"),
    ("tieredimagenet", "cifar"),
    ("cifar-fs", "split folders"),
]:

    @case(f"{kind} of another data set as {dataset}", dataset)
    def _(path, kind=kind):
        return tree(path, good(kind))


# Settings ------------------------------------------------------------------------------------------------------------
SETTINGS = {
    "size zero": ("mine", {"image_size": 0}),
    "size negative": ("mine", {"image_size": -5}),
    "size huge": ("mine", {"image_size": 100_000}),
    "no workers": ("mine", {"workers": 0}),
    "many workers": ("mine", {"workers": 10_000}),
    "broken: ignore": ("mine", {"on_broken": "ignore"}),
    "order: gbr": ("mine", {"channel_order": "gbr"}),
    "fractions of 1.5": ("mine", {"fractions": (0.5, 0.5, 0.5)}),
    "fractions below zero": ("mine", {"fractions": (1.5, -0.5, 0.0)}),
    "two fractions": ("mine", {"fractions": (0.5, 0.5)}),
    "name with a slash": ("a/b", {}),
    "name that climbs": ("../up", {}),
    "hidden name": (".hidden", {}),
    "empty name": ("", {}),
    "long name": ("x" * 100, {}),
    "name of an unfinished one": ("x.partial", {}),
    "nearly a known name": ("fc1000", {}),
    "the package's own": ("glyphs", {}),
}
for what, (dataset, settings) in SETTINGS.items():
    case(f"settings: {what}", dataset, **settings)(lambda path: tree(path, good("own")))


def test_there_are_more_than_two_hundred():
    assert len(CASES) >= 200


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch, write, name):
    WRITERS[:] = [write]
    dataset, make, settings = CASES[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    source = make(tmp_path / "in")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.name.isprintable())
    with pytest.raises(E3BMError) as error:
        prepare(dataset, source, folder=tmp_path / "data", **{"workers": 1, **settings})
    message = str(error.value)
    assert isinstance(error.value, DataError | SettingsError)
    assert 20 < len(message) < 900
    assert message.isprintable()
    assert "Traceback" not in message
    after = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.name.isprintable())
    assert after == before, "something was left behind, or a pickle ran"


@pytest.mark.parametrize("name", [name for name, (_, _, settings) in CASES.items() if not settings][::3])
def test_the_doctor_survives_all_of_them(tmp_path, monkeypatch, write, name):
    WRITERS[:] = [write]
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    source = CASES[name][1](tmp_path)
    try:
        said = doctor(source, workers=1).advice
    except E3BMError as error:
        said = str(error)
    assert 20 < len(said) < 900
    assert not list((tmp_path / "data").iterdir())


WITH_A_SOURCE = [name for name, (_, _, settings) in CASES.items() if not settings and "name" not in name]


@pytest.mark.parametrize("name", WITH_A_SOURCE[1::5])
def test_the_command_ends_with_code_2_and_a_sentence(tmp_path, monkeypatch, write, capsys, name):
    from e3bm.cli.main import main

    WRITERS[:] = [write]
    dataset, make, _ = CASES[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    source = make(tmp_path / "in")
    words = [
        "prepare",
        dataset or "mine",
        "--source",
        str(source),
        "--folder",
        str(tmp_path / "data"),
        "--workers",
        "1",
    ]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert len(captured.err) > 20
    assert not list((tmp_path / "data").iterdir())
