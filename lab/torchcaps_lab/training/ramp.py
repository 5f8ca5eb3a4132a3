"""Settings of routings that change over a training, as the sharpness of K-Means."""

from collections.abc import Mapping, Sequence

from torch import nn

from torchcaps.numerics import Progress, Ramp
from torchcaps.routing import Routing
from torchcaps.spec import check, declared


class Ramps:
    r"""Settings of the routings of a network that change evenly over the epochs of a
    training.

    Each routing that has a setting of that name gets its value at the beginning of
    every epoch, and a network is saved with the value of the epoch that is kept. The
    value depends on nothing but the epoch and the number of epochs.

    Args:
        network: the network whose routings are set, at once to the first values.
        ramps: the first and the last value of each setting, by name; None for none.

    Raises:
        ValueError: if no routing of the network has a setting of that name, it is no
            number, or a value is out of its range.

    Example:
        >>> from torchcaps.numerics import Progress
        >>> from torchcaps_lab.training.ramp import Ramps
        >>> network = tc.create_model(
        ...     "capsnet_digits", routing=tc.create_routing("kmeans")
        ... )
        >>> ramps = Ramps(network, {"sharpness": (0.5, 2.0)})
        >>> ramps.set(Progress(epoch=1, epochs=4))
        >>> network.routing.sharpness
        1.0
    """

    def __init__(
        self, network: nn.Module, ramps: Mapping[str, Sequence[float]] | None
    ) -> None:
        self.ramps = {
            name: Ramp(*map(float, ends)) for name, ends in (ramps or {}).items()
        }
        routings = [
            module for module in network.modules() if isinstance(module, Routing)
        ]
        self.routings = {}
        for name, ramp in self.ramps.items():
            self.routings[name] = [module for module in routings if _has(module, name)]
            self._check(name, ramp, routings)
        self.set(Progress(0, 1))

    def _check(self, name: str, ramp: Ramp, routings: Sequence[Routing]) -> None:
        if not self.routings[name]:
            kinds = (
                ", ".join(sorted({type(module).__name__ for module in routings}))
                or "no routing"
            )
            raise ValueError(
                "ramp must name a number that the routing of the network takes, got "
                f"{name!r} for {kinds}"
            )
        for routing in self.routings[name]:
            hint = declared(type(routing)).arguments[name].hint
            for value in ramp:
                check(hint, value, f"ramp.{name}")

    def set(self, progress: Progress) -> None:
        """Sets all of them to their values at that point of the training."""
        for name, ramp in self.ramps.items():
            for routing in self.routings[name]:
                setattr(routing, name, ramp.at(progress))


def _has(routing: Routing, name: str) -> bool:
    """Whether a routing has a number as that setting, no count and no switch."""
    argument = declared(type(routing)).arguments.get(name)
    value = getattr(routing, name, None)
    return (
        argument is not None
        and isinstance(argument.default, float)
        and isinstance(value, float | int)
    )
