"""The page in the browser that ``torchcaps explore`` opens: to draw, move poses and
watch routing.

Everything that it shows is an exhibit of :mod:`torchcaps_lab.report`. Starlette and
uvicorn, of the extra ``explore``, are imported only when the page is served.
"""

from torchcaps_lab.explore.explorer import Explorer, Look
from torchcaps_lab.explore.samples import local_samples
from torchcaps_lab.explore.server import application, serve

__all__: list[str] = []
