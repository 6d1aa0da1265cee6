"""Folders and archives as trees: the same files whatever the container, and nothing that escapes or explodes."""

import gzip
import io
import os
import struct
import tarfile
import zipfile
import zlib

import pytest

from e3bm.data.read.archives import open_tree
from e3bm.errors import DataError

FILES = {
    "train/apple/a.png": b"apple",
    "train/pear/b.png": b"pear" * 1000,
    "split/train.csv": b"filename,label\n",
    "ünïcode/ß.jpg": b"1",
}
KINDS = ["folder", "zip", "deflated zip", "tar", "tar.gz", "tar.bz2", "tar.xz"]


def write_tree(path, kind, files=FILES):
    """The files in a container of a kind."""
    if kind == "folder":
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        return path
    if "zip" in kind:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if "deflated" in kind else zipfile.ZIP_STORED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w:" + kind[4:]) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_same_files_in_every_container(tmp_path, kind):
    tree = open_tree(write_tree(tmp_path / "data", kind))
    assert sorted(tree.names) == sorted(FILES)
    for name, content in FILES.items():
        assert tree.read(name) == content
        assert tree.size(name) == len(content)
        with tree.open(name) as stream:
            assert stream.read() == content
            stream.seek(1)
            assert stream.read(3) == content[1:4]
            stream.seek(0)
            assert stream.read(2) == content[:2]
    with pytest.raises(DataError, match="bytes"):
        tree.read("train/pear/b.png", limit=100)
    tree.close()


@pytest.mark.parametrize("kind", KINDS)
def test_fingerprint_changes_with_the_content_only(tmp_path, kind):
    path = write_tree(tmp_path / "data", kind)
    before, again = open_tree(path), open_tree(path)
    assert before.fingerprint() == again.fingerprint()
    other = open_tree(write_tree(tmp_path / "other", kind, {**FILES, "train/apple/a.png": b"APPLE!"}))
    assert other.fingerprint() != before.fingerprint()
    for tree in (before, again, other):
        tree.close()


def test_compressed_tars_keep_their_order_and_others_are_sorted(tmp_path):
    names = {"b/1.png": b"1", "a/2.png": b"2", "c/0.png": b"0"}
    plain, packed = (open_tree(write_tree(tmp_path / kind, kind, names)) for kind in ("tar", "tar.gz"))
    assert plain.names == ("a/2.png", "b/1.png", "c/0.png")
    assert not plain.sequential
    assert packed.names == ("b/1.png", "a/2.png", "c/0.png")
    assert packed.sequential
    plain.close()
    packed.close()


def test_archives_inside_a_folder_are_read_as_if_unpacked(tmp_path):
    write_tree(tmp_path / "one_part.zip", "zip", {"x/1.png": b"1"})
    write_tree(tmp_path / "two_part.tar.gz", "tar.gz", {"y/2.png": b"2"})
    write_tree(tmp_path / "foreign.zip", "zip", {"z/3.png": b"3"})
    tree = open_tree(tmp_path, ("*_part*",))
    assert {name for name in tree.names if name.endswith(".png")} == {"x/1.png", "y/2.png"}
    assert tree.read("y/2.png") == b"2"
    tree.close()


def test_several_sources_become_one_tree_unless_they_clash(tmp_path):
    one = write_tree(tmp_path / "one.zip", "zip", {"x/1.png": b"1"})
    two = write_tree(tmp_path / "two.zip", "zip", {"y/1.png": b"2"})
    tree = open_tree([one, two])
    assert tree.names == ("x/1.png", "y/1.png")
    tree.close()
    with pytest.raises(DataError, match="both"):
        open_tree([one, write_tree(tmp_path / "three.zip", "zip", {"x/1.png": b"3"})])


def test_junk_is_not_seen(tmp_path):
    junk = {
        "__MACOSX/a.png": b"",
        "a/.DS_Store": b"",
        "a/._b.png": b"",
        "a/Thumbs.db": b"",
        ".git/x.png": b"",
        "a/b.png": b"b",
    }
    for kind in ("folder", "zip", "tar"):
        tree = open_tree(write_tree(tmp_path / kind, kind, junk))
        assert tree.names == ("a/b.png",)
        tree.close()


def test_linked_folders_are_followed_once_and_pipes_are_passed_over(tmp_path):
    (tmp_path / "real" / "owl").mkdir(parents=True)
    (tmp_path / "real" / "owl" / "a.png").write_bytes(b"a")
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    (tmp_path / "data").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "real" / "owl" / "pipe.png")
    assert open_tree(tmp_path / "data").names == ("owl/a.png",)


ESCAPES = [
    "../evil.png",
    "a/../../evil.png",
    "/etc/evil.png",
    "C:/evil.png",
    "a\\..\\evil.png",
    "a/..",
    "..",
    "a/\x00b.png",
    "a/\x1bb.png",
]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_names_that_escape_are_refused(tmp_path, kind, name):
    if kind == "tar" and "\x00" in name:
        pytest.skip("a tar header ends a name at the first zero byte")
    path = tmp_path / "bad"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            # The library would clean the name, so a name of the same length is replaced in the finished file.
            archive.writestr("x" * len(name.encode()), b"1")
        path.write_bytes(path.read_bytes().replace(b"x" * len(name.encode()), name.encode()))
    else:
        write_tree(path, "tar", {name: b"1"})
    with pytest.raises(DataError, match=r"outside|control"):
        open_tree(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_tars_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        member = tarfile.TarInfo("owl/a.png")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(DataError, match=r"owl/a\.png.*refused"):
        open_tree(tmp_path / "x.tar")


def test_links_in_zips_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        member = zipfile.ZipInfo("owl/a.png")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(DataError, match="link"):
        open_tree(tmp_path / "x.zip")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_the_same_name_twice_is_refused(tmp_path, kind):
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "x", "w") as archive:
            archive.writestr("a/b.png", b"1")
            archive.writestr("a/b.png", b"2")
    else:
        write_tree(tmp_path / "x", "tar", {"a/b.png": b"1", "./a/b.png": b"2"})
    with pytest.raises(DataError, match="twice"):
        open_tree(tmp_path / "x")


def test_bombs_are_refused(tmp_path):
    zeros = b"\0" * (100 << 20)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.pickle", zeros)
    write_tree(tmp_path / "x.tar.gz", "tar.gz", {"train.pickle": zeros})
    for name in ("x.zip", "x.tar.gz"):
        with pytest.raises(DataError, match="bomb"):
            open_tree(tmp_path / name)


def test_a_member_that_lies_about_its_size_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", b"\0" * 50_000_000)
    true, small = struct.pack("<I", 50_000_000), struct.pack("<I", 1000)
    path.write_bytes(path.read_bytes().replace(true, small))
    tree = open_tree(path)
    with pytest.raises(DataError, match=r"damaged|cut short"):
        tree.read("a.png")
    tree.close()


def test_a_wrong_checksum_is_noticed(tmp_path):
    path = write_tree(tmp_path / "x.zip", "zip", {"a.png": b"hello hello"})
    path.write_bytes(path.read_bytes().replace(b"hello hello", b"hello hallo"))
    tree = open_tree(path)
    with pytest.raises(DataError, match="damaged"):
        tree.read("a.png")
    tree.close()


def test_an_encrypted_member_is_refused(tmp_path):
    path = write_tree(tmp_path / "x.zip", "zip", {"a.png": b"1"})
    content = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + offset] |= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="encrypted"):
        open_tree(path)


def test_names_that_are_not_utf8(tmp_path):
    plain = write_tree(tmp_path / "x.zip", "zip", {"klXsse/a.png": b"1"})
    unflagged = tmp_path / "latin.zip"
    unflagged.write_bytes(plain.read_bytes().replace(b"klXsse", b"kl\xe4sse"))
    flagged = write_tree(tmp_path / "y.zip", "zip", {"klässe/a.png": b"1"})
    flagged.write_bytes(flagged.read_bytes().replace("klässe".encode(), b"kl\xe4\xe4sse"))
    (tmp_path / "folder").mkdir()
    os.mkdir(os.fsencode(tmp_path / "folder") + b"/kl\xe4sse")
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin1") as archive:
        archive.addfile(tarfile.TarInfo("klässe/a.png"))
    for path in (unflagged, flagged, tmp_path / "folder", tmp_path / "x.tar"):
        with pytest.raises(DataError, match="UTF-8"):
            open_tree(path)
    # Many tools write UTF-8 without setting the flag for it: that is read as what it is.
    unflagged.write_bytes(plain.read_bytes().replace(b"klXsse", "klße".encode() + b"x"))
    tree = open_tree(unflagged)
    assert tree.names == ("klßex/a.png",)
    tree.close()


@pytest.mark.parametrize("kind", ["zip", "deflated zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_every_truncation_is_noticed(tmp_path, kind):
    path = write_tree(tmp_path / f"x.{kind.split()[-1]}", kind)
    content, refused = path.read_bytes(), 0
    for length in range(0, len(content), max(len(content) // 100, 1)):
        path.write_bytes(content[:length])
        try:
            tree = open_tree(path)
        except DataError:
            refused += 1
            continue
        # Only padding was lost: everything must be there.
        assert {name: tree.read(name) for name in tree.names} == FILES
        tree.close()
    assert refused > 30


def test_a_hole_in_a_tar_is_noticed(tmp_path):
    path = write_tree(tmp_path / "x.tar", "tar")
    content = bytearray(path.read_bytes())
    content[1024:1536] = b"\x07" * 512
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"end mark|invalid header"):
        open_tree(path)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("x.zip", b"", "empty"),
        ("x.zip", b"<html>not found</html>", "not an archive"),
        ("x.zip", b"PK\x03\x04" + b"\0" * 100, "zip"),
        ("x.tar", b"\x01" * 2000, "tar"),
        ("x.tar.gz", gzip.compress(b"no tar at all", mtime=0), "tar"),
        ("x.tar.gz", b"\x1f\x8b" + b"\xff" * 50, "tar"),
        ("x.rar", b"Rar!\x1a\x07", "not an archive"),
        ("x.7z", b"7z\xbc\xaf", "not an archive"),
        ("x.gz", zlib.compress(b"x"), "not an archive"),
    ],
)
def test_what_is_no_archive(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=match):
        open_tree(tmp_path / name)


def test_what_is_not_there(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        open_tree(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither"):
        open_tree(tmp_path / "pipe")
    with pytest.raises(DataError, match="No source"):
        open_tree([])
