"""Pictures of objects without labels, which slots take apart."""

from torchcaps_lab.kinds.objects.pictures import SlotMoves as SlotMoves
from torchcaps_lab.kinds.objects.pictures import SlotPictures as SlotPictures
from torchcaps_lab.kinds.objects.published import MultiDSprites as MultiDSprites
from torchcaps_lab.kinds.objects.published import Tetrominoes as Tetrominoes
from torchcaps_lab.kinds.objects.scenes3d import Scenes3D as Scenes3D
from torchcaps_lab.kinds.objects.sets import PictureFolder as PictureFolder
from torchcaps_lab.kinds.objects.sets import Pictures as Pictures
from torchcaps_lab.kinds.objects.sets import Shapes as Shapes
from torchcaps_lab.kinds.objects.task import Objects as Objects

__all__: list[str] = []
