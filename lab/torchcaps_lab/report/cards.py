"""What a notebook shows of an answer and of a classifier, as HTML in which all text is
escaped.
"""

from collections.abc import Mapping
from html import escape

from torch import Tensor

from torchcaps_lab.report.exhibit import pngs

_SHOWN = 10
"""Most classes that have a bar."""


def answer_card(
    answer: str,
    shares: Mapping[str, float],
    description: str,
    picture: Tensor | None,
    note: str,
) -> str:
    """An answer: the picture as the network saw it, and a bar for each of the likeliest
    classes.

    Args:
        answer: the answer, in words.
        shares: of the classes, from 0 to 1.
        description: what the shares are.
        picture: (C, H, W) in [0, 1]; None for none.
        note: on how the picture was made.
    """
    image = ""
    if picture is not None:
        image = (
            f'<img src="{pngs(picture)}" alt="the image" '
            'style="height:8em;image-rendering:pixelated">'
        )
    likeliest = sorted(shares.items(), key=lambda named_share: -named_share[1])[:_SHOWN]
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td style='width:12em;text-align:left'>"
        "<div "
        f"style='background:#4a78b5;height:.8em;width:{100 * min(max(share, 0), 1):.1f}%'></div></td>"
        f"<td>{share:.1%}</td></tr>"
        for name, share in likeliest
    )
    text = (
        f"<b>{escape(answer)}</b> "
        f"<small>{escape(description)}{'; ' * bool(note)}{escape(note)}</small>"
    )
    return (
        "<div "
        f"style='display:flex;gap:1em;align-items:center'>{image}<div>{text}<table>{rows}</table></div></div>"
    )


def facts_card(facts: Mapping[str, str]) -> str:
    """A classifier in a few facts."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    return f"<b>Classifier</b><table>{rows}</table>"
