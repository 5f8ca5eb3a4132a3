"""A page in the browser on which people draw, move poses and watch routing: what ``torchcaps explore`` opens.

Everything that it shows is an exhibit of :mod:`torchcaps.explain`. Starlette and uvicorn, of the extra ``explore``, are
imported where they serve.
"""

from torchcaps.explore.explorer import Explorer, Look
from torchcaps.explore.samples import digit_samples, local_samples
from torchcaps.explore.server import application, serve

__all__ = ["Explorer", "Look", "application", "digit_samples", "local_samples", "serve"]
