"""Files of options that try to run something, and what they may do at most."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from torchcaps.spec import Registry, Spec
from torchcaps_lab.training import read_options, training_options

_SPAWNING = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "subprocess.Popen",
    "pty.spawn",
)
_watch: dict[str, bool] = {"spawning": False, "imports": False}
_seen: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    imported = event == "import" and _watch["imports"] and arguments[0] not in sys.modules
    if imported or (_watch["spawning"] and event in _SPAWNING):
        _seen.append(f"{event} {arguments[0]!r}")


sys.addaudithook(_audit)  # which cannot be taken away again


@contextmanager
def watched(imports: bool = True) -> Iterator[list[str]]:
    """Lists what is imported for the first time and what is started inside the block."""
    _seen.clear()
    _watch.update(spawning=True, imports=imports)
    try:
        yield _seen
    finally:
        _watch.update(spawning=False, imports=False)


def harmless(text: str, path: Path) -> bool:
    """Whether a file with this text imports and starts nothing, and what it describes is in a table."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with watched() as seen:
        try:
            options = training_options(read_options(path))
        except ValueError:
            return not seen
    kinds = [spec for group in options.groups for spec in _things(dict(group.arguments))]
    return not seen and all(one.registry is None or _known(one, one.registry) for one in kinds)


def _known(spec: Spec, registry: Registry) -> bool:
    return issubclass(spec.cls, registry.base) and spec.cls in (*registry.values(), *registry.classes())


def _things(value: Any) -> Iterator[Spec]:
    """All specs inside a value."""
    if isinstance(value, Spec):
        yield value
        value = value.arguments
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _things(one)


_GAPS = " ", " ", " ", " ", "\t", "  ", "", "\u00a0", "\n ", "\r", "\x85", "\ufeff", " # x\n "
_NAMES = (
    *(
        "os.system",
        "subprocess.Popen",
        "builtins.exec",
        "hostile_module.Thing",
        "Adam",
        "torch.optim.Adam",
        "torch.load",
    ),
    *(
        "torch.utils.cpp_extension.load",
        "torchcaps_lab.data.base.os.system",
        "importlib.import_module",
        "EMRouting",
        "em",
    ),
    *("Digits", "ImageFolder", "2001-99-99", "1e999", "~"),
)
_TAGS = (
    *("", "", "", "", "!!str", "!!python/object/apply:os.system", "!!python/name:os.system", "!x", "&a", "*a", "!!map"),
    *("!!binary", "!!timestamp", "!!bool", "?", "\n ", "%TAG ! tag:x,2000:\n---"),
)
_KEYS = "class_path", "class_path", "name", "name", "init_args", "dict_kwargs", "_target_", "<<", "optimizer.class_path"
_OPTIONS = (
    *(
        "optimizer",
        "scheduler",
        "data",
        "routing",
        "loss",
        "task",
        "trainer",
        "speed",
        "preprocess",
        "model_args",
        "run",
    ),
    *("config", "import", "epochs", "model", "trainer.extra", "data.data", "optimizer.lr"),
)
_STARTS = "", "\ufeff", "--- ", "%YAML 1.2\n---\n", "data: Digits\n", "data: &a Digits\nmodel: capsnet_digits\n"


def texts(mark: Path) -> st.SearchStrategy[str]:
    """YAML texts that name things to run where options take a class; each would write ``mark``.

    Biased to what readers of YAML disagree about: tabs, dates that are none, tags, anchors, byte order marks, quotes in
    quotes, and flow mappings as text.
    """
    one_of = st.sampled_from
    tag = one_of(_TAGS).map(lambda tag: f"{tag} ")
    command = one_of([f"{{command: touch {mark}}}", f"[touch {mark}]", f"{{args: [touch, {mark}]}}", "{lr: 0.1}", "3"])
    pair = st.tuples(one_of(_KEYS), st.just(":"), one_of(_GAPS), tag, one_of(_NAMES) | command).map("".join)
    flow = st.lists(pair, min_size=1, max_size=4).map(lambda pairs: f"{{{', '.join(pairs)}}}")
    quoted = st.recursive(
        st.tuples(one_of(_GAPS), flow, one_of(_GAPS)).map("".join) | one_of(_NAMES),
        lambda inner: (
            inner.map(repr)
            | inner.map(lambda one: '"' + one.replace('"', '\\"') + '"')
            | inner.map(lambda one: f"|\n  {one}")
            | inner.map(lambda one: f"\ufeff{one}")
            | st.lists(inner, max_size=3).map(lambda several: f"[{', '.join(several)}]")
        ),
        max_leaves=4,
    )
    value = quoted | st.text(max_size=12)
    line = st.tuples(one_of(_OPTIONS), st.just(":"), one_of(_GAPS), tag, value, st.just("\n")).map("".join)
    return st.tuples(one_of(_STARTS), st.lists(line, min_size=1, max_size=2).map("".join)).map("".join)
