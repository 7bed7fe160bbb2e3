"""An error about a file that is not there names what is."""

from __future__ import annotations

from pathlib import Path

from weft.near_files import LISTED, missing_file


def test_a_close_name_is_guessed_and_others_are_listed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert missing_file(Path("net.py"), [".py"]).why == "this folder has no .py file"
    for name in ("net.py", "net.pt"):
        Path(name).touch()
    assert str(missing_file(Path("nte.py"), [".py"])) == "there is no file nte.py\n  fix   did you mean net.py?"
    assert missing_file(Path("other.py"), [".py", ".pt"]).why == "this folder has net.pt, net.py"
    assert missing_file(Path("absent/net.py"), [".py"], "run").fact == "there is no run absent/net.py"
    assert missing_file(Path("absent/net.py"), [".py"]).why == "there is no folder absent"


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    for index in range(LISTED + 3):
        (tmp_path / f"{index}.py").touch()
    assert (
        missing_file(tmp_path / "network.py", [".py"]).why == f"{tmp_path} has 0.py, 1.py, 2.py, 3.py, 4.py and 3 more"
    )


def test_a_folder_is_no_file_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "net.py").mkdir()
    assert str(missing_file(tmp_path / "net.py", [".py"])).startswith(f"{tmp_path}/net.py is a folder")
    assert missing_file(tmp_path / "nte.py", [".py"]).why == f"{tmp_path} has no .py file"
