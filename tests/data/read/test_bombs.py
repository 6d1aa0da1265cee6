"""Small files that ask for a large memory, or for more depth than Python has, are refused with a sentence.

Each is opened by a process that may take little memory: one that the file kills has no sentence to say.
"""

import gzip
import io
import json
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

ROOM = 448 << 20  # bytes beyond what the imports take
LOOK = """
import gc, resource, sys
from pathlib import Path
from e3bm.data.inspect.doctor import doctor
from e3bm.data.read.prepare import prepare
from e3bm.errors import E3BMError
room = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for path in sys.argv[2:]:
    for work in (lambda: doctor(Path(path)), lambda: prepare("own", Path(path), Path(path).with_suffix(".out"))):
        try:
            work()
            print("an answer")
        except E3BMError as error:
            print("a sentence:", str(error)[:300])
        gc.collect()
"""


def look_at(*paths):
    """What doctor and prepare say of each file."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the memory of a process is bounded as Linux does")
    words = [sys.executable, "-c", LOOK, str(ROOM), *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert len(said) == 2 * len(paths)
    return said


def data_set(folder, labels):
    """A pickled data set of eight images whose labels are these instructions."""
    pixels = pickle.dumps(np.zeros((8, 8, 8, 3), np.uint8), protocol=2)[2:-1]
    content = b"\x80\x04}(U\x04data" + pixels + b"U\x06labels" + labels + b"u."
    folder.mkdir()
    for split in ("train", "val", "test"):
        (folder / f"own_{split}.pickle").write_bytes(content)
    return folder


def long_integer(value):
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def a_range(stop):
    return b"cbuiltins\nrange\nK\x00" + long_integer(stop) + b"\x86R"


DEEP = 90_000  # a tuple in a tuple: within what a file of its size may have


@pytest.fixture
def bombs(tmp_path):
    nested = b")" + b"\x85" * DEEP
    # "doubled": a list of a list twice, forty times over, has more elements than there are bytes on any disk.
    structures = {
        "deep_key": b"}" + nested + b"K\x01s",
        "deep_ordered_key": b"ccollections\nOrderedDict\n](" + nested + b"K\x01\x86e\x85R",
        "deep_labels": nested,
        "deep_shape": b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01" + nested
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89C\x00tb",
        "deep_type": b"cnumpy\ndtype\n" + nested + b"\x85R",
        "range": a_range(10**10),
        "huge_range": a_range(10**30),
        "fitting_range": a_range(8),
        "memoize": b"]" + b"\x94" * 3_000_000,
        "empties": b"(" + b"}" * 3_000_000 + b"t",
        "marks": b"(" * 3_000_000,
        "doubled": b"]K\x00a" + b"".join(b"\x94](h%ch%ce" % (n, n) for n in range(40)),
    }  # fmt: skip
    return {name: data_set(tmp_path / name, labels) for name, labels in structures.items()}


def test_pickles(bombs):
    said = look_at(*bombs.values())
    found = {name: said[2 * place : 2 * place + 2] for place, name in enumerate(bombs)}
    assert found.pop("fitting_range") != []
    for name, words in found.items():
        assert all(each.startswith("a sentence:") for each in words), (name, words)
    assert "a range of more numbers" in found["range"][0]
    assert "key is a tuple" in found["deep_key"][0]
    assert "more structure than a file of its size" in found["memoize"][0]


def header(kind, size, name=b"x"):
    info = tarfile.TarInfo(name.decode())
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.REGTYPE]
)
def test_headers_of_a_tar(tmp_path, kind):
    """400 MB of zeros in one header; a compressed file of 400 KB."""
    size, path = 400 << 20, tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header(kind, size))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
        file.write(bytes(1024))
    for words in look_at(path):
        assert words.startswith("a sentence:")
        assert "bomb" in words or "which no real archive has" in words


def test_chains_of_headers_and_sparse_files(tmp_path):
    chain, sparse, sparse_pax, below = (tmp_path / f"{n}.tar" for n in ("chain", "sparse", "sparse_pax", "below"))
    chain.write_bytes((header(tarfile.GNUTYPE_LONGNAME, 512) + b"x" * 512) * 20_000 + bytes(1024))
    sparse.write_bytes(header(tarfile.GNUTYPE_SPARSE, 512) + bytes(512 * 3))
    record = b"30 GNU.sparse.major=1234567890\n"
    sparse_pax.write_bytes(header(tarfile.XHDTYPE, len(record)) + record.ljust(512, b"\0") + bytes(1024))
    negative = bytearray(header(tarfile.REGTYPE, 0))
    negative[124:136] = b"\xff" * 12
    negative[148:156] = b" " * 8
    negative[148:156] = b"%06o\0 " % sum(negative)
    below.write_bytes(bytes(negative) + bytes(1024))
    for words in look_at(chain, sparse, sparse_pax, below):
        assert words.startswith("a sentence:")


def test_headers_of_npz_files(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for split, shape in (("train", "(" * 4000), ("val", "[" * 4000 + "]" * 4000), ("test", "(1,)" * 2000)):
        text = ("{'descr': " + shape + ", 'fortran_order': False, 'shape': (1,)}").encode().ljust(9000) + b"\n"
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
        with zipfile.ZipFile(folder / f"{split}_images.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("images.npy", content)
        (folder / f"{split}_labels.pkl").write_bytes(pickle.dumps({"labels": [0]}))
    for words in look_at(folder):
        assert words.startswith("a sentence:")


def test_a_described_set_that_nests(tmp_path):
    """classes.json of a prepared set, nested deeper than a parser goes."""
    contents = {"deep": b"[" * 200_000, "keys": b'{"a":' * 200_000, "wide": json.dumps([[]] * 9).encode()}
    for name, content in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "classes.json").write_bytes(content)
    said = look_at(*(tmp_path / name for name in contents))
    assert all("classes.json is damaged" in words for words in said[::2])


def test_a_good_tar_is_read_as_the_library_reads_it(tmp_path):
    """Long names, large sizes in extended headers, folders, other formats of the header."""
    from e3bm.data.read.archives import open_tree

    for number, form in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        path = tmp_path / f"{number}.tar"
        with tarfile.open(path, "w", format=form) as archive:
            for name, size in (("a/x.png", 3), ("b/" + "long" * 22 + ".png", 700), ("b/été.png", 512), ("c", None)):
                info = tarfile.TarInfo(name)
                if size is None:
                    info.type = tarfile.DIRTYPE
                else:
                    info.size = size
                    info.mtime = 1.5 if form == tarfile.PAX_FORMAT else 1
                archive.addfile(info, io.BytesIO(bytes(size or 0)))
        with tarfile.open(path) as archive:
            files = {each.name: each.size for each in archive if each.isreg()}
        tree = open_tree(path)
        assert {name: tree.size(name) for name in tree.names} == files
        assert {name: len(tree.read(name)) for name in tree.names} == files
        assert tree.folders == {"c"}
        tree.close()
