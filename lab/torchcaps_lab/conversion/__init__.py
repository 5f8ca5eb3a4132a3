"""Networks that others trained with their own code, made into networks of this
package.
"""

from torchcaps_lab.conversion.convert import convert

__all__ = ["convert"]
