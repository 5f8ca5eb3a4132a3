"""Shapes of poses, as layers take them."""

from torchcaps.capsules import Capsules

Pose = int | tuple[int, int]
"""D for vector capsules, (M, D) for matrix capsules."""


def pose_shape(pose: Pose) -> tuple[int, ...]:
    """(D,) or (M, D)."""
    return (pose,) if isinstance(pose, int) else tuple(pose)


def check_rows(in_pose: tuple[int, ...], out_pose: tuple[int, ...]) -> None:
    """Raises a ValueError unless child and parent poses have the same rows: a transform acts on the columns."""
    if len(in_pose) != len(out_pose) or in_pose[:-1] != out_pose[:-1]:
        raise ValueError(f"poses must have the same rows: in_pose is {in_pose}, out_pose is {out_pose}")


def check_map(children: Capsules, types: int, pose: tuple[int, ...]) -> None:
    """Raises a ValueError unless the children lie on a map (B, H, W, types) with poses of that shape."""
    sites = children.activation.shape
    if len(sites) != 4 or sites[-1] != types or children.pose.shape != (*sites, *pose):
        raise ValueError(
            f"children must have poses (B, H, W, {types}, {', '.join(map(str, pose))}) and activations "
            f"(B, H, W, {types}), got {tuple(children.pose.shape)} and {tuple(sites)}"
        )
