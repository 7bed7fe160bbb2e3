"""Behaviour of the digest of the code generator's sources."""

import shutil
from pathlib import Path

import pytest

import weft
from weft.codegen.objects.code_version import SOURCES, code_version, digest_of


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
