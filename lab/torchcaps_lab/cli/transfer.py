"""Draw the class of one image with the pose of another, and the steps between."""

from json import dumps
from pathlib import Path

from torchcaps.spec import Size, jsonable
from torchcaps.whole import written_whole
from torchcaps_lab.cli.places import Trained
from torchcaps_lab.look import Resize


def command(
    content: str,
    style: str,
    *,
    run: Trained,
    steps: Size = 1,
    content_class: str | None = None,
    out: str = "transfer.png",
    resize: Resize | None = None,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Draw the class of one image with the pose of another.

    Args:
        content: image file whose class is kept
        style: image file whose pose is taken: slant, thickness, width, ...
        run: folder of a run, or of a saved network, with a decoder
        steps: pictures on the way from the content's own pose to that of the style
        content_class: class to draw; default: the predicted class of the content
        out: picture to write
        resize: how images are fitted to the network; default: as it was trained
        device: where to compute: cpu, cuda, cuda:1, ...
        json: print JSON, with the attributes that were measured
    """
    import torch

    from torchcaps_lab.cli import transferring
    from torchcaps_lab.cli.runs import open_classifier
    from torchcaps_lab.report.canvas import strip

    transferring.check_out(out, content, style)
    classifier = open_classifier(run, device)
    transferring.check_decoder(classifier)
    pictures = torch.stack(
        [classifier.pixels(file, resize) for file in (content, style)]
    )
    drawn, labels = transferring.transferred(classifier, pictures, content_class, steps)
    names = [classifier.classes[label] for label in labels]
    between = [""] * (steps - 1)
    titles = [
        f"content\n{names[0]}",
        "drawn\nagain",
        *between,
        "with that\npose",
        f"style\n{names[1]}",
    ]
    with written_whole(Path(out)) as part:
        strip(torch.cat([pictures[:1], drawn, pictures[1:]]), titles).savefig(
            part, format=transferring.form_of(out)
        )
    if json:
        shown = torch.cat([pictures[:1], drawn[:1], drawn[-1:], pictures[1:]])
        summary = {
            "content": names[0],
            "style": names[1],
            "picture": out,
            "attributes": transferring.measured(shown),
        }
        print(dumps(jsonable(summary)))
    else:
        print(f"{names[0]} of {content} with the pose of {names[1]} of {style}: {out}")
