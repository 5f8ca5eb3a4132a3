"""A library that another user may have written is never loaded, and no file of anybody is
emptied: the cache of compiled kernels may lie in a folder that many share.
"""

import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ops.test_kernel_library import cache, forgotten, times_compiled
from torchcaps.ops.fused import library
from torchcaps.ops.fused.compiling import find_compiler

__all__ = ["cache", "forgotten"]

SOMEBODY = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give files to another user"
)


@pytest.fixture
def planted(cache: Path, tmp_path: Path) -> Path:
    """A library under the right name, which leaves a mark if it is loaded."""
    compiler = find_compiler()
    assert compiler is not None
    path = library.build()
    name = path.stem.split("-")[0]
    path.unlink()
    (tmp_path / "calls").unlink()
    source = tmp_path / "hostile.cpp"
    source.write_text(
        "#include <cstdio>\n__attribute__((constructor)) void act() {"
        f'std::fclose(std::fopen("{tmp_path}/mark", "w")); }}'
    )
    hostile = tmp_path / "hostile.so"
    command = ["c++", "-shared", "-fPIC", str(source), "-o", str(hostile)]
    subprocess.run(command, check=True)
    path = path.with_name(f"{name}-{library._digest(hostile)}.so")
    return hostile.rename(path)


def load() -> None:
    library.library.cache_clear()
    assert library.library().vector_bytes


def load_alone() -> None:
    """Loads a library, which was compiled for this process."""
    with pytest.warns(RuntimeWarning, match="for this process alone, because") as told:
        load()
    assert len(told) == 1


def test_the_planted_library_would_be_executed(planted: Path, tmp_path: Path) -> None:
    """In a folder of this user, it is one of this user."""
    with pytest.raises(RuntimeError, match="could not be loaded"):
        load()
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("above", [0, 1, 2])
@pytest.mark.parametrize(
    "mode", [0o777, 0o1777, pytest.param(0o770, marks=needs_root)], ids=oct
)
def test_a_folder_that_others_write_to_is_not_used(
    mode: int, above: int, planted: Path, tmp_path: Path
) -> None:
    """In a sticky folder, nobody can rename what belongs to somebody else."""
    shared = [planted.parent, *planted.parents[1:]][above]
    shared.chmod(mode)
    if mode == 0o770:
        os.chown(shared, -1, SOMEBODY)
    if mode == 0o1777 and above > 0:
        planted.unlink()
        load()
    else:
        load_alone()
    assert not (tmp_path / "mark").exists()
    assert times_compiled(planted.parent) == 1


GIFTS: dict[str, Callable[[Path], None]] = {
    "the file": lambda path: os.chown(path, SOMEBODY, -1),
    "its folder": lambda path: os.chown(path.parent, SOMEBODY, -1),
    "the folder above": lambda path: os.chown(path.parents[1], SOMEBODY, -1),
}


@needs_root
@pytest.mark.parametrize("gift", GIFTS)
def test_what_belongs_to_another_user_is_not_loaded(
    gift: str, planted: Path, tmp_path: Path
) -> None:
    GIFTS[gift](planted)
    if gift == "the file":
        load()
        assert not planted.exists()
    else:
        load_alone()
    assert not (tmp_path / "mark").exists()


def test_a_file_that_others_may_write_to_is_compiled_again(
    planted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    planted.chmod(0o666)
    with caplog.at_level(logging.WARNING):
        load()
    assert f"again, because {planted} is damaged or another user's" in caplog.text
    assert not (tmp_path / "mark").exists()


def test_a_link_to_a_library_is_not_followed(planted: Path, tmp_path: Path) -> None:
    elsewhere = planted.rename(tmp_path / "elsewhere.so")
    planted.symlink_to(elsewhere)
    load()
    assert not (tmp_path / "mark").exists()
    assert elsewhere.exists()


def test_a_lock_empties_nothing(cache: Path, tmp_path: Path) -> None:
    library.build().unlink()
    (cache / "lock").unlink()
    (tmp_path / "thesis").write_text("years of work")
    for make in (Path.symlink_to, Path.hardlink_to):
        make(cache / "lock", tmp_path / "thesis")
        if make is Path.symlink_to:
            load_alone()
        else:
            load()
        assert (tmp_path / "thesis").read_text() == "years of work"
        (cache / "lock").unlink()


def test_a_lock_that_waits_forever_is_refused(cache: Path) -> None:
    """Another process may hold the other end of a pipe, or lock a file of its own."""
    library.build().unlink()
    (cache / "lock").unlink()
    os.mkfifo(cache / "lock")
    load_alone()


@needs_root
def test_links_on_the_way_are_those_of_this_user(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = library.build()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(link))
    assert library.build().samefile(real)
    os.chown(link, SOMEBODY, -1, follow_symlinks=False)
    load_alone()


def test_a_circle_of_links_is_no_end(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, target in (("first", "second"), ("second", "first")):
        (tmp_path / name).symlink_to(tmp_path / target)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    with pytest.raises(RuntimeError, match=r"could not be compiled.*first"):
        library.build()


def test_a_library_is_private_under_any_umask(cache: Path) -> None:
    before = os.umask(0)
    try:
        path = library.build()
        assert library.build() == path
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o077 == 0
    assert all(folder.stat().st_mode & 0o022 == 0 for folder in (cache, cache.parent))
    assert times_compiled(cache) == 1


def test_without_any_private_folder_nothing_is_loaded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "shared"))
    with (
        pytest.warns(RuntimeWarning, match="for this process alone"),
        pytest.raises(RuntimeError, match=r"other users may write to .*shared"),
    ):
        library.library()
    assert not list((tmp_path / "shared").iterdir())
