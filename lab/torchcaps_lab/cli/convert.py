"""Make a saved network from the weights of other authors: Efficient-CapsNet's .h5,
Heinsen's .pt.
"""

from torchcaps_lab.cli.places import Existing


def command(file: Existing, *, to: str) -> None:
    """Convert the weights of other authors.

    Args:
        file: Keras weights of Efficient-CapsNet (.h5), or Heinsen's state dict (.pt)
        to: folder of the saved network, new or empty
    """
    from torchcaps_lab.conversion import convert

    network = convert(file, to)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{type(network).__name__}, {parameters:,} parameters: {to}")
