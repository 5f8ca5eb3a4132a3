"""The page in the browser that ``torchcaps explore`` opens: to draw, move poses and watch routing.

Everything that it shows is an exhibit of :mod:`torchcaps.report`. Starlette and uvicorn, of the extra ``explore``, are
imported only when the page is served.
"""

from torchcaps.explore.explorer import Explorer, Look
from torchcaps.explore.samples import digit_samples, local_samples
from torchcaps.explore.server import application, serve

__all__ = ["Explorer", "Look", "application", "digit_samples", "local_samples", "serve"]
