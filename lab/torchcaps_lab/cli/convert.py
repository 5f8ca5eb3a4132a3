"""``torchcaps convert``."""

from torchcaps.models import Network, convert


def command(arguments: list[str]) -> None:
    """Make a saved network from the weights of other authors: Efficient-CapsNet's .h5, Heinsen's .pt."""
    from torchcaps_lab.cli.parser import OptionParser

    parser = OptionParser(prog="torchcaps convert", description="Convert the weights of other authors.")
    parser.add_argument(
        "file", type=str, help="Keras weights of Efficient-CapsNet (.h5), or Heinsen's state dict (.pt)"
    )
    parser.add_argument("--to", type=str, required=True, help="folder of the saved network, new or empty")
    options = parser.parse_args(arguments)
    network: Network = convert(options.file, options.to)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{type(network).__name__}, {parameters:,} parameters: {options.to}")
