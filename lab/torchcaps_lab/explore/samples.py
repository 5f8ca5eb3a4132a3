"""Examples to try for networks without a run: data sets that are on this machine, without
downloads.
"""

import warnings

from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import Examples
from torchcaps_lab.data.base import Tell


def local_samples(
    name: str, classifier: Classifier, tell: Tell = warnings.warn
) -> Examples | None:
    """Test examples for a network.

    Args:
        name: the name of the network; for one from the package, ``data/network``: if
            that data set is on this machine, its test examples are read.
        classifier: the network, whose reader knows what else to try.
        tell: is called with the reason if test examples are damaged and not used.

    Returns:
        None if there are none for it.
    """
    return classifier.reader.samples(name.partition("/")[0], classifier, tell)
