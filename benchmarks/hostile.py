"""Files of options that try to run something, and what they may do at most."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from torchcaps.spec import Registry, Spec
from torchcaps_lab.training import read_options, training_options

TRIED: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "faults.yaml").read_text(encoding="utf-8")
)
"""What is tried: options of a training, values that do not belong there, and the parts
of random YAML.
"""

_watch: dict[str, bool] = {"spawning": False, "imports": False}
_seen: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    imported = (
        event == "import" and _watch["imports"] and arguments[0] not in sys.modules
    )
    if imported or (_watch["spawning"] and event in TRIED["spawning"]):
        _seen.append(f"{event} {arguments[0]!r}")


sys.addaudithook(_audit)  # which cannot be taken away again


@contextmanager
def watched(imports: bool = True) -> Iterator[list[str]]:
    """Lists what is imported for the first time and what is started inside the
    block.
    """
    _seen.clear()
    _watch.update(spawning=True, imports=imports)
    try:
        yield _seen
    finally:
        _watch.update(spawning=False, imports=False)


def harmless(text: str, path: Path) -> bool:
    """Whether a file with this text imports and starts nothing, and what it describes
    is in a table.
    """
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with watched() as seen:
        try:
            options = training_options(read_options(path))
        except ValueError:
            return not seen
    kinds = [
        spec for group in options.groups for spec in _things(dict(group.arguments))
    ]
    return not seen and all(
        one.registry is None or _known(one, one.registry) for one in kinds
    )


def _known(spec: Spec, registry: Registry) -> bool:
    return issubclass(spec.cls, registry.base) and spec.cls in (
        *registry.values(),
        *registry.classes(),
    )


def _things(value: Any) -> Iterator[Spec]:
    """All specs inside a value."""
    if isinstance(value, Spec):
        yield value
        value = value.arguments
    for one in (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else ()
    ):
        yield from _things(one)


def texts(mark: Path) -> st.SearchStrategy[str]:
    """YAML texts that name things to run where options take a class; each would write
    ``mark``.

    Biased to what readers of YAML disagree about: tabs, dates that are none, tags,
    anchors, byte order marks, quotes in quotes, and flow mappings as text.
    """
    gap, name, key, place, start = (
        st.sampled_from(TRIED[part])
        for part in ("gaps", "names", "keys", "places", "starts")
    )
    tag = st.sampled_from(TRIED["tags"]).map(lambda tag: f"{tag} ")
    command = st.sampled_from(
        [
            f"{{command: touch {mark}}}",
            f"[touch {mark}]",
            f"{{args: [touch, {mark}]}}",
            "{lr: 0.1}",
            "3",
        ]
    )
    pair = st.tuples(key, st.just(":"), gap, tag, name | command).map("".join)
    flow = st.lists(pair, min_size=1, max_size=4).map(
        lambda pairs: f"{{{', '.join(pairs)}}}"
    )
    quoted = st.recursive(
        st.tuples(gap, flow, gap).map("".join) | name,
        lambda inner: (
            inner.map(repr)
            | inner.map(lambda one: '"' + one.replace('"', '\\"') + '"')
            | inner.map(lambda one: f"|\n  {one}")
            | inner.map(lambda one: f"\ufeff{one}")
            | st.lists(inner, max_size=3).map(lambda several: f"[{', '.join(several)}]")
        ),
        max_leaves=4,
    )
    line = st.tuples(
        place, st.just(":"), gap, tag, quoted | st.text(max_size=12), st.just("\n")
    ).map("".join)
    return st.tuples(start, st.lists(line, min_size=1, max_size=2).map("".join)).map(
        "".join
    )
