"""The library of C++ kernels: compiled once, by one process, loaded only if it is
whole, never the end of a program.
"""

import ctypes
import logging
import os
import platform
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchcaps.ops import Votes
from torchcaps.ops.fused import library, why_not
from torchcaps.ops.fused.compiling import GCC_ONLY, LEVELS, find_compiler
from torchcaps.ops.plan import FEW_TILES


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    library.library.cache_clear()
    why_not.cache_clear()
    yield
    library.library.cache_clear()
    why_not.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a quick compiler: it hands out the library of the user's
    cache, and notes each call.
    """
    try:
        path = library.build()
    except RuntimeError as error:
        if "there is no c++" not in str(error):
            raise
        pytest.skip("this machine has no compiler to hand out a library of")
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        f"echo $PPID > {tmp_path}/begun; mv {tmp_path}/begun {tmp_path}/compiling\n"
        'sleep "${SLOW:-0}"\n'
        'while [ "$1" != "-o" ]; do shift; done\n'
        f'cp {path} "$2"\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torchcaps" / "native"


def calls(cache: Path) -> list[str]:
    return (cache.parents[2] / "calls").read_text().splitlines()


def times_compiled(cache: Path) -> int:
    """How often the library was compiled, which is more than one call each time."""
    return sum("native.cpp" in call for call in calls(cache))


def chosen() -> str:
    """The backend of many votes, at work."""
    votes = Votes(torch.ones(1, FEW_TILES, 4), torch.ones(1, 2, 4, 8))
    assert votes.moments(scatter=True).mass.sum() == pytest.approx(FEW_TILES, rel=1e-4)
    return votes.choose_backend().backend


DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"\x7fELF" + b"\x00" * len(content),
    "a bit": lambda content: (
        content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_library_is_compiled_again(
    damage: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = library.build()
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert chosen() == "native"
    (warning,) = caplog.messages
    assert f"again, because {path} is damaged" in warning
    assert times_compiled(cache) == 2
    assert library.build() == path
    assert times_compiled(cache) == 2


def test_a_library_that_may_not_be_loaded_is_no_end(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that is mounted without the right to execute."""

    def refuse(path: str) -> None:
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.warns(
        RuntimeWarning, match=r"slower routing.*failed to map segment.*XDG_CACHE_HOME"
    ) as warned:
        assert chosen() == "chunked"
    assert len(warned) == 1
    assert chosen() == "chunked"  # without another one


def test_something_that_is_no_library_is_no_end(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "compiler").write_text(
        '#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done\necho no library > "$2"\n'
    )
    with pytest.warns(RuntimeWarning, match="slower routing.*could not be loaded"):
        assert chosen() == "chunked"


def test_a_library_without_the_kernels_is_no_end(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda path: object())
    with pytest.warns(
        RuntimeWarning, match="slower routing.*could not be loaded.*torchcaps_run"
    ):
        assert chosen() == "chunked"


def test_a_command_that_is_none_is_no_end(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "g++ '-DX")
    with pytest.warns(
        RuntimeWarning,
        match="slower routing.*CXX must be a command, got .*: No closing quotation",
    ):
        assert chosen() == "chunked"


def test_a_compiler_that_speaks_in_another_encoding_is_no_end(
    cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "compiler").write_text(
        "#!/bin/sh\nprintf 'no m\\366glich' >&2; exit 1\n"
    )
    with pytest.warns(
        RuntimeWarning, match="(?s)slower routing.*could not be compiled.*no m.glich"
    ):
        assert chosen() == "chunked"


def test_a_blank_name_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    compiler = find_compiler()
    monkeypatch.setenv("CXX", "  ")
    assert find_compiler() == compiler


def test_each_c_library_has_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that a container shares: a library that needs a newer C library cannot be
    loaded there.
    """
    here = library.build()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.17"))
    assert library.build() != here


@pytest.mark.parametrize("name", ["flags", "Features"])
def test_each_processor_has_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On x86 and on ARM, where processors without SVE end a program that uses it."""
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{name}\t: first second\n")
    monkeypatch.setattr(library, "Path", lambda path: tmp_path / "cpuinfo")
    assert "first second" in library._machine()


def test_a_compiler_with_options(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -m64 '-DNAME=two words'")
    assert chosen() == "native"
    assert calls(cache)[0].startswith("-m64 -DNAME=two words -O3")


def test_clang_is_asked_again_without_the_flag_that_it_refuses(cache: Path) -> None:
    compiler = Path(os.environ["CXX"])
    refuses = (
        f'case "$*" in *{GCC_ONLY}*) echo "error: unknown argument: '
        f"'{GCC_ONLY}'\" >&2; exit 1;; esac"
    )
    compiler.write_text(
        compiler.read_text().replace("#!/bin/sh", f"#!/bin/sh\n{refuses}")
    )
    assert chosen() == "native"
    assert times_compiled(cache) == 1
    assert calls(cache)[0].startswith("-O3")


BUILD = (
    "from torchcaps.ops.fused import library; library.library(); print(library.build())"
)


def started(code: str = BUILD, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_listening,
    )


def wait_for(path: Path) -> Path:
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path


def _listening() -> None:
    """A shell's job in the background ignores Ctrl-C, and so would what is started from
    there.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.thorough
def test_three_processes_at_once_compile_once(cache: Path) -> None:
    processes = [started(SLOW="1") for _ in range(3)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert {path.strip() for path, _ in outputs} == {str(library.build())}
    assert sorted(
        warning.count("compiling torchcaps' C++ kernels, once")
        for _, warning in outputs
    ) == [0, 0, 1]
    assert times_compiled(cache) == 1


@pytest.mark.thorough
def test_one_of_three_is_killed_while_it_compiles(cache: Path) -> None:
    """Its compiler lives on, and writes where nothing is any more."""
    processes = [started(SLOW="3") for _ in range(3)]
    compiler = wait_for(cache.parents[2] / "compiling")
    killed = next(
        process for process in processes if process.pid == int(compiler.read_text())
    )
    os.kill(killed.pid, signal.SIGKILL)
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert sorted(process.returncode for process in processes) == [-9, 0, 0]
    assert {path.strip() for path in outputs} == {"", str(library.build())}
    assert times_compiled(cache) == 2
    assert {path.name for path in cache.iterdir()} == {"lock", library.build().name}


@pytest.mark.thorough
def test_one_that_is_killed_before_the_library_has_its_name(cache: Path) -> None:
    dies = (
        "import os, pathlib; pathlib.Path.replace = lambda *_: os.kill(os.getpid(), 9)"
    )
    killed = started(f"{dies}; {BUILD}")
    killed.communicate(timeout=120)
    assert killed.returncode == -9
    assert list(cache.glob("making-*/made.so"))
    others = [started() for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in others]
    assert {path.strip() for path in outputs} == {str(library.build())}
    assert times_compiled(cache) == 2
    assert {path.name for path in cache.iterdir()} == {"lock", library.build().name}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sign",
    [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT],
    ids=["SIGKILL", "Ctrl-C"],
)
def test_an_interruption_leaves_nothing(sign: signal.Signals, cache: Path) -> None:
    process = started(SLOW="60")
    deadline = time.monotonic() + 120
    while not list(cache.glob("making-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(cache.glob("making-*"))
    os.killpg(process.pid, sign)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert chosen() == "native"
    assert {path.name for path in cache.iterdir()} == {"lock", library.build().name}


class TestFromTheWheel:
    """Libraries that came with the package need no compiler and no home."""

    @pytest.fixture
    def shipped(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Path:
        """A folder of such libraries, one for this processor; no compiler, and a home
        that is none.
        """
        kind = platform.machine()
        if kind == "x86_64":
            level = torch.backends.cpu.get_cpu_capability()
            if level not in LEVELS:
                pytest.skip(f"no library comes for processors of the level {level}")
            kind = LEVELS[level]
        path = tmp_path / "built" / f"native-{kind}.so"
        path.parent.mkdir()
        path.write_bytes(library.build().read_bytes())
        (cache.parents[2] / "calls").unlink()
        monkeypatch.setattr(library, "BUILT", path.parent)
        monkeypatch.setenv("CXX", "/nowhere/c++")
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        return path

    def test_it_is_loaded(self, shipped: Path) -> None:
        assert library.built() == [shipped]
        assert library.library()._name == str(shipped)
        assert chosen() == "native"

    def test_one_that_cannot_be_loaded_is_compiled_here(
        self, shipped: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shipped.write_bytes(b"no library")
        monkeypatch.setenv("CXX", str(cache.parents[2] / "compiler"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parents[1]))
        assert chosen() == "native"
        assert library.library()._name == str(library.build())

    def test_without_any_there_is_a_slower_way_and_one_warning(
        self, shipped: Path
    ) -> None:
        shipped.unlink()
        with pytest.warns(RuntimeWarning, match="slower routing") as warned:
            assert chosen() == "chunked"
        assert len(warned) == 1

    @pytest.mark.parametrize(
        ("processor", "kinds"),
        [
            ("AVX512", ["x86-64-v4", "x86-64-v3"]),
            ("AVX2", ["x86-64-v3"]),
            ("DEFAULT", []),
        ],
    )
    def test_no_processor_gets_what_it_cannot_do(
        self,
        processor: str,
        kinds: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for kind in ("x86-64-v4", "x86-64-v3", "aarch64"):
            (tmp_path / f"native-{kind}.so").touch()
        monkeypatch.setattr(library, "BUILT", tmp_path)
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: processor)
        assert [path.name for path in library.built()] == [
            f"native-{kind}.so" for kind in kinds
        ]
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        assert [path.name for path in library.built()] == ["native-aarch64.so"]
