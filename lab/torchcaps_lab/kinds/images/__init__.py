"""Images: of class folders, or with labels in a table."""

from torchcaps_lab.kinds.images.table import ImageTable

__all__: list[str] = []
