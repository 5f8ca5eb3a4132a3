"""Scenes of things that fell onto a floor, rendered with their masks."""

import tempfile
from contextlib import closing
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from torchcaps.numerics import Size
from torchcaps.optional_imports import needing
from torchcaps.spec import Within, settings
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.kinds.images.decoding.store import decode_images
from torchcaps_lab.kinds.objects.sets import (
    ObjectSet,
    SlotCount,
    SomeObjects,
    waves,
)

Meshes = Literal["usual", "unseen"]
Camera = Literal["usual", "other"]
Floor = Literal["plain", "textured"]

_MESHES = {"usual": range(900), "unseen": range(900, 1000)}
"""Numbers of the meshes that come with pybullet."""

_ELEVATIONS = {"usual": (35.0, 50.0), "other": (60.0, 85.0)}
"""The least and the highest angle of cameras above the floor, degrees."""

_DISTANCES = {"usual": (0.65, 0.75), "other": (0.55, 0.9)}
"""Of cameras from the middle of the scene, metres. Things are about 0.1 m long."""

_RADIUS = 0.2
"""Things start within this distance of the middle, metres."""

_FALL = 150
"""Steps of 1/240 s: things lie after these."""

_LEAST_SHARE = 0.003
"""Of the pixels of a picture; scenes in which a thing has fewer are drawn again."""

_COLOURS = (
    (173, 35, 35),
    (42, 75, 215),
    (29, 105, 20),
    (129, 74, 25),
    (129, 38, 192),
    (41, 208, 208),
    (255, 238, 51),
    (255, 146, 51),
)
"""CLEVR's (Johnson et al. 2017), with orange in place of grey, which the floor has."""

_FORMAT = 2
"""Version of the pictures; changes if the drawing changes."""

_FINER = 2
"""Pixels are means of so many by so many, so edges are smooth."""

_TEXTURE = 64
"""Pixels along the side of a texture."""

_TILE = 0.4
"""Metres of the floor that a texture covers before it repeats."""


@register_dataset("scenes_3d")
@settings
class Scenes3D(SomeObjects):
    """Three to six things on a floor, seen by a camera: their masks are known.

    Things have one of 1,000 shapes and one of eight colours. They fall onto the floor,
    with shadows, and may hide each other. Scenes are simulated and drawn by pybullet
    (the extra ``scenes3d``), 0.05 s each on one core, when the data is first used; they
    are kept in the folder of the data sets. Training images are always the same, and
    so are the test images, whatever the seed.

    Args:
        size: height and width, in pixels.
        least: the least number of things of an image.
        most: the largest number of things of an image.
        slots: the number of slots that networks get. Default: ``most`` + 1.
        meshes: ``usual``, 900 shapes; or ``unseen``, 100 others.
        camera: ``usual``, 35 to 50 degrees above the floor; or ``other``, 60 to 85
            degrees, nearer and farther.
        floor: ``plain``, grey; or ``textured``, waves between two colours.
        count: the number of training images, those for validation among them.
        tests: the number of test images.

    Raises:
        ModuleNotFoundError: if pybullet is not installed, once images are asked for.
        ValueError: if ``least`` is more than ``most``, or that is more than there are
            slots for.

    Example:
        >>> from torchcaps_lab.data import Scenes3D
        >>> harder = Scenes3D(least=7, most=8, meshes="unseen")
        >>> harder.floor  # pictures are drawn when they are first asked for
        'plain'
    """

    size: Annotated[int, Within(32, 512)] = 64
    least: Size = 3
    most: Annotated[int, Within(1, 10)] = 6
    slots: SlotCount | None = None
    meshes: Meshes = "usual"
    camera: Camera = "usual"
    floor: Floor = "plain"
    count: Size = 5_000
    tests: Size = 320

    def _drawn(self, count: int, seed: int) -> ObjectSet:
        how = f"scenes of pybullet {_bullet_version()}, {_FORMAT}"
        shape = (4, self.size, self.size)
        kind = (self.least, self.most, self.meshes, self.camera, self.floor)
        names = [f"{kind} {seed} {index}" for index in range(count)]

        def scene(index: int) -> Tensor:
            generator = np.random.default_rng([seed, index])
            while True:
                picture = _scene(self, generator)
                if picture is not None:
                    return picture

        pictures, _ = decode_images(names, scene, shape, how, mapped=True)
        return ObjectSet(pictures[:, :3], pictures[:, 3], self.slot_names)


def _bullet_version() -> str:
    """Of pybullet.

    Raises:
        ModuleNotFoundError: if it is not installed; names the extra.
    """
    with needing("scenes in three dimensions", "torchcaps-lab[scenes3d]"):
        import_module("pybullet")
    return version("pybullet")


class _World:
    """The functions of pybullet for one simulation without a window. (The client that
    comes with pybullet prints a line for each.)
    """

    def __init__(self) -> None:
        import pybullet
        import pybullet_data

        self._bullet = pybullet
        self._client = pybullet.connect(pybullet.DIRECT)
        self.setAdditionalSearchPath(pybullet_data.getDataPath())
        self.setGravity(0, 0, -9.8)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._bullet, name)
        return (
            partial(value, physicsClientId=self._client) if callable(value) else value
        )

    def close(self) -> None:
        """End the simulation."""
        self.disconnect()


def _scene(data: Scenes3D, generator: np.random.Generator) -> Tensor | None:
    """One picture and the thing of each pixel, 0 for the floor, uint8 (4, H, W); None if
    a thing is hardly to be seen.
    """
    count = int(generator.integers(data.least, data.most, endpoint=True))
    # A world of its own: nothing is left of the scene before.
    with closing(_World()) as world:
        _lay_floor(world, data.floor, generator)
        for number in range(count):
            _drop(world, data.meshes, number, generator)
        for _ in range(_FALL):
            world.stepSimulation()
        pixels, bodies = _rendered(world, data.size, data.camera, generator)
    # The floor is body 0, the sky -1.
    labels = bodies.clip(0).astype(np.uint8)
    shares = np.bincount(labels.ravel(), minlength=count + 1)[1:] / labels.size
    if shares.min() < _LEAST_SHARE:
        return None
    return torch.from_numpy(np.concatenate([pixels, labels[None]], dtype=np.uint8))


def _lay_floor(world: Any, floor: Floor, generator: np.random.Generator) -> None:
    """A plane without end, painted as far as a camera sees."""
    far = 4.0
    corners = [[x, y, 0.0] for x in (-far, far) for y in (-far, far)]
    look = world.createVisualShape(
        world.GEOM_MESH,
        vertices=corners,
        indices=[0, 2, 1, 1, 2, 3],
        uvs=[[x / _TILE, y / _TILE] for x, y, _ in corners],
        normals=[[0.0, 0.0, 1.0]] * 4,
        rgbaColor=[0.7, 0.7, 0.7, 1.0],
    )
    body = world.createMultiBody(0, world.createCollisionShape(world.GEOM_PLANE), look)
    if floor == "textured":
        seed = int(generator.integers(2**31))
        texture = waves(1, _TEXTURE, torch.Generator().manual_seed(seed), 255)[0]
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "texture.png")
            Image.fromarray(texture.movedim(0, -1).numpy()).save(file)
            number = world.loadTexture(file)
        world.changeVisualShape(body, -1, textureUniqueId=number, rgbaColor=[1.0] * 4)


def _drop(
    world: Any, meshes: Meshes, number: int, generator: np.random.Generator
) -> None:
    """One thing above the floor, turned in any way; later ones fall from higher."""
    mesh = generator.choice(_MESHES[meshes])
    # Uniform over a disc.
    angle = generator.uniform(0, 2 * np.pi)
    radius = _RADIUS * np.sqrt(generator.uniform())
    body = world.loadURDF(
        f"random_urdfs/{mesh:03d}/{mesh:03d}.urdf",
        [radius * np.cos(angle), radius * np.sin(angle), 0.1 + 0.08 * number],
        world.getQuaternionFromEuler(generator.uniform(0, 2 * np.pi, 3).tolist()),
    )
    colour = np.array(_COLOURS[generator.integers(len(_COLOURS))]) / 255
    world.changeVisualShape(body, -1, rgbaColor=[*colour, 1.0])


def _rendered(
    world: Any, size: int, camera: Camera, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """What a camera sees, uint8 (3, H, W), and the body of each pixel, (H, W)."""
    around = generator.uniform(0, 2 * np.pi)
    up = np.deg2rad(generator.uniform(*_ELEVATIONS[camera]))
    distance = generator.uniform(*_DISTANCES[camera])
    level = distance * np.cos(up)
    place = [level * np.cos(around), level * np.sin(around), distance * np.sin(up)]
    fine = _FINER * size
    _, _, pixels, _, bodies = world.getCameraImage(
        fine,
        fine,
        world.computeViewMatrix(place, [0, 0, 0.02], [0, 0, 1]),
        world.computeProjectionMatrixFOV(45, 1, 0.05, 3),
        renderer=world.ER_TINY_RENDERER,
        shadow=1,
        lightDirection=[1, 1, 2],
    )
    colours = np.reshape(pixels, (size, _FINER, size, _FINER, 4))[..., :3]
    bodies = np.reshape(bodies, (size, _FINER, size, _FINER))
    # In the order of memory that files have.
    means = np.ascontiguousarray(colours.mean((1, 3)).round().transpose(2, 0, 1))
    return means.astype(np.uint8), bodies[:, 0, :, 0]
