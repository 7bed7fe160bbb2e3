"""Behaviour of the digest of the code generator's sources."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from weft.codegen.objects import native as under_test
from weft.codegen.objects.native import DIGEST_FOLDER, SOURCES, code_version, digest_of, known_digest
from weft.config import overrides


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that are digested."""
    folder = Path(weft.__file__).parent
    for pattern in SOURCES:
        for path in folder.glob(pattern):
            target = tmp_path / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
    return tmp_path


def test_the_same_sources_elsewhere_have_the_same_digest(copy: Path) -> None:
    assert digest_of(copy) == code_version()


@pytest.mark.parametrize("name", ["codegen/kernels/gemm.py", "plan/kernels/conv.py", "ir/types.py", "target.py"])
def test_a_changed_source_has_another_digest(copy: Path, name: str) -> None:
    with (copy / name).open("a") as file:
        file.write("\n# changed\n")
    assert digest_of(copy) != code_version()


def test_a_new_file_and_a_renamed_one_change_the_digest(copy: Path) -> None:
    (copy / "codegen" / "new.py").write_text("")
    added = digest_of(copy)
    (copy / "codegen" / "new.py").rename(copy / "codegen" / "newer.py")
    assert len({added, digest_of(copy), code_version()}) == 3


def test_a_file_that_changes_while_files_are_digested_is_read_whole(copy: Path) -> None:
    path = copy / "target.py"
    (stamp,) = under_test._stamps(copy, "target.py")
    path.write_bytes(b"# longer\n" * stamp[2])
    assert under_test._content(stamp) == path.read_bytes()
    path.write_bytes(b"")
    assert under_test._content(stamp) == b""


@pytest.fixture
def kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, in which files count as old at once."""
    monkeypatch.setattr(under_test, "NEW_NANOSECONDS", 0)
    folder = tmp_path_factory.mktemp("cache")
    with overrides(cache_dir=folder):
        yield folder / DIGEST_FOLDER


def test_files_that_look_as_before_are_not_read_again(copy: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = known_digest(copy)
    assert first == digest_of(copy)
    assert len(list(kept.iterdir())) == 1
    monkeypatch.setattr(under_test, "digest_of", lambda *_: pytest.fail("read again"))
    assert known_digest(copy) == first


def test_a_file_of_the_same_size_and_time_but_another_content_is_read_again(copy: Path, kept: Path) -> None:
    first, path = known_digest(copy), copy / "target.py"
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-2] + b"#\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert known_digest(copy) == digest_of(copy) != first


def test_files_added_renamed_and_removed_are_seen(copy: Path, kept: Path) -> None:
    found = [known_digest(copy)]
    (copy / "codegen" / "kernels" / "new.py").write_text("")
    found.append(known_digest(copy))
    (copy / "codegen" / "kernels" / "new.py").rename(copy / "codegen" / "kernels" / "newer.py")
    found.append(known_digest(copy))
    (copy / "codegen" / "kernels" / "newer.py").unlink()
    found.append(known_digest(copy))
    assert len(set(found)) == 3
    assert found[0] == found[3]


def test_files_just_written_are_read_each_time(copy: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "NEW_NANOSECONDS", 10**15)
    assert known_digest(copy) == digest_of(copy)
    assert not kept.exists()


def test_an_entry_in_the_place_of_another_is_not_used(copy: Path, kept: Path) -> None:
    known_digest(copy)
    (entry,) = kept.iterdir()
    (copy / "target.py").write_text("# another\n")
    right = known_digest(copy)
    (other,) = set(kept.iterdir()) - {entry}
    shutil.copy(entry, other)
    assert known_digest(copy) == right == digest_of(copy)
