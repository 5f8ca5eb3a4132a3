"""Capsules as a classifier of scikit-learn: in pipelines, grid searches and
cross-validation.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from torchcaps.layers import CapsHead
from torchcaps.numerics import Positive, Size
from torchcaps.optional_imports import needing
from torchcaps.routing import create_routing
from torchcaps.spec import SuggestsNames, Within, check_fields

with needing("estimators", "torchcaps[mixture]"):
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import (
        _check_partial_fit_first_call,
        check_classification_targets,
    )
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        validate_data,
    )

_ALIKE = 0.01
"""Lengths that differ by less from row to row, relatively, are one answer."""

_INVERSE_TEMPERATURE = 10.0
"""The factor of the lengths in the loss, and so in the probabilities."""


@dataclass(eq=False, repr=False)
class CapsNetClassifier(SuggestsNames, ClassifierMixin, BaseEstimator):
    r"""Class capsules on features, or on small images, trained by gradient descent:
    ``fit``, ``partial_fit``, ``predict_proba``.

    The features go through a hidden layer, or for images through two convolutions, to
    :class:`~torchcaps.layers.CapsHead`; scale them before, as for other networks
    (``StandardScaler``). Probabilities are :math:`\operatorname{softmax}(10 \, a)` of
    the lengths a, which the cross-entropy of training compares with the labels.

    Args:
        image_shape: (C, H, W), if a row holds the pixels of an image in that order;
            None for plain features.
        hidden: units of the hidden layer, or channels of the convolutions.
        types: the number of types of primary capsules.
        dim: the numbers of their poses.
        pose_dim: the size of the poses of the classes.
        routing: the name of a routing.
        routing_arguments: its arguments; None for the defaults.
        epochs: passes over the training rows, in one cycle of the learning rate.
        batch_size: rows a step.
        learning_rate: the highest, of Adam.
        class_weight: how much the loss of each class counts: a dict from label to
            weight, where missing labels have 1, or ``"balanced"``: n / (E n_j), for n_j
            rows of class j. None for 1.
        random_state: the random state of weights and of the order of rows, as
            scikit-learn takes it.
        device: the device of torch. A pickle has the network on the CPU, and it goes to
            this device when it is used: ``set_params(device="cpu")`` where there is no
            such device.

    Attributes:
        classes_: the labels, (E,).
        network_: the trained network: features (B, F) to Capsules, in float64.
        loss_curve_: the mean loss of each epoch, or of each call of ``partial_fit``.
        n_features_in_: F.

    Raises:
        ValueError: by ``fit``, if an argument is out of its range, rows do not have the
            pixels of ``image_shape``, a weight is negative or not finite, or a loss is
            not finite, as with features of 1e200.

    Warns:
        ConvergenceWarning: by ``fit``, if the trained network answers the same for all
            rows.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from torchcaps.sklearn import CapsNetClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> CapsNetClassifier(random_state=0).fit(X, y).score(X, y) > 0.9
        True
    """

    image_shape: tuple[int, int, int] | None = None
    hidden: Annotated[int, Within(2)] = 64
    types: Size = 16
    dim: Size = 8
    pose_dim: Size = 16
    routing: str = "dynamic"
    routing_arguments: dict[str, Any] | None = None
    epochs: Size = 30
    batch_size: Annotated[int, Within(2)] = 32
    learning_rate: Positive = 3e-3
    random_state: Any = None
    device: str = "cpu"
    class_weight: dict[Any, float] | str | None = None

    # Off: gradients are on, whatever the caller's mode.
    @torch.inference_mode(False)
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "CapsNetClassifier":
        """Train on rows X, (n, F), with labels y, (n,).

        Args:
            X: the features, or the pixels of the images.
            y: the labels.
            sample_weight: how much the loss of each row counts, (n,), 0 or more, beside
                the mean over the rows. A row of weight 0 is left out as if it was not
                given. None for 1.
        """
        rows, labels, weights = self._checked(X, y, sample_weight, reset=True)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(
                "y must have two classes or more, got one class, "
                f"{self.classes_.tolist()[0]!r}"
            )
        data = self._data(rows, labels, weights)
        scale = data.tensors[2]
        scale /= scale.mean()
        with self._seeded():
            optimizer = self._begin(rows)
            loader = self._loader(data)
            cycle = torch.optim.lr_scheduler.OneCycleLR(
                optimizer,
                self.learning_rate,
                total_steps=int(self.epochs) * len(loader),
            )
            for _ in range(self.epochs):
                self._pass(loader, rows, cycle)
        # What partial_fit goes on with, at its own rate.
        self._optimizer = self._new_optimizer()
        self._warn_if_dead(rows)
        return self

    @torch.inference_mode(False)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "CapsNetClassifier":
        """Train on more rows: one pass over them, at the learning rate.

        Args:
            X: the features, or the pixels of the images.
            y: the labels, some of the classes.
            classes: the labels of all calls. They are needed in the first one.
            sample_weight: as of :meth:`fit`, beside 1.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight 'balanced' needs all rows: give partial_fit a dict"
            )
        # A call that was refused has named the classes, and begun nothing.
        first = _check_partial_fit_first_call(self, classes) or not hasattr(
            self, "network_"
        )
        rows, labels, weights = self._checked(X, y, sample_weight, reset=first)
        data = self._data(rows, labels, weights)
        with self._seeded():
            if first:
                self._begin(rows)
            _bring(self.network_, self._optimizer, self.device)
            self._pass(self._loader(data), rows)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if hasattr(self, "network_"):
            # Together: the copy of the optimizer is that of the copied network.
            pair = copy.deepcopy((self.network_, self._optimizer))
            _bring(*pair, "cpu")
            state["network_"], state["_optimizer"] = pair
        return state

    def _checked(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, reset: bool
    ) -> tuple[Tensor, NDArray[Any], NDArray[Any]]:
        """Rows (n, F), labels (n,) and weights (n,), without those of weight 0."""
        check_fields(self)
        _check_rows(X)
        rows, labels = validate_data(self, X, y, dtype=np.float64, reset=reset)
        check_classification_targets(labels)
        weights = _check_sample_weight(
            sample_weight, rows, dtype=np.float64, ensure_non_negative=True
        )
        counts = weights > 0
        if not counts.any():
            raise ValueError(
                "sample_weight must be above 0 for some row, got 0 for all"
            )
        if self.image_shape is not None and np.prod(self.image_shape) != rows.shape[1]:
            raise ValueError(
                f"X must have the pixels of image_shape {self.image_shape}, got "
                f"{rows.shape[1]} a row"
            )
        return torch.tensor(rows[counts]), labels[counts], weights[counts]

    def _data(
        self, rows: Tensor, labels: NDArray[Any], weights: NDArray[Any]
    ) -> TensorDataset:
        """Rows, the places of their labels, and their weights."""
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y must hold labels of classes {self.classes_}, got {unknown}"
            )
        target = np.searchsorted(self.classes_, labels)
        of_classes = compute_class_weight(
            self.class_weight, classes=self.classes_, y=labels
        )
        usable = np.isfinite(of_classes).all() and (of_classes >= 0).all()
        if not (usable and of_classes.any()):
            raise ValueError(
                "class_weight must be 0 or more, finite, and not 0 for all classes, "
                f"got {self.class_weight}"
            )
        counted = torch.tensor(weights * of_classes[target])
        return TensorDataset(rows, torch.as_tensor(target), counted)

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Inside, random numbers are those of the random state. Those of the caller
        stay what they are.
        """
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield

    def _network(self) -> nn.Sequential:
        """Features (B, F) to class capsules."""
        routing = create_routing(self.routing, **(self.routing_arguments or {}))
        sizes = {"types": self.types, "dim": self.dim, "pose_dim": self.pose_dim}
        head = CapsHead(len(self.classes_), **sizes, routing=routing)
        if self.image_shape is None:
            return nn.Sequential(nn.LazyLinear(self.hidden), nn.ReLU(), head)
        stem = [nn.Conv2d(self.image_shape[0], self.hidden, 3, padding=1), nn.ReLU()]
        stem += [
            nn.Conv2d(self.hidden, self.hidden, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Flatten(),
        ]
        return nn.Sequential(nn.Unflatten(1, self.image_shape), *stem, head)

    def _begin(self, rows: Tensor) -> torch.optim.Adam:
        """Make a network for such rows, and return its optimizer."""
        self.network_ = self._network().double()
        # Lazy layers learn their sizes.
        self.network_(rows[:2])
        self.network_.to(self.device)
        self.loss_curve_: list[float] = []
        self._optimizer = self._new_optimizer()
        return self._optimizer

    def _new_optimizer(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.network_.parameters(), self.learning_rate)

    def _loader(self, data: TensorDataset) -> DataLoader[Any]:
        return DataLoader(data, int(self.batch_size), shuffle=True)

    def _pass(self, loader: DataLoader[Any], rows: Tensor, cycle: Any = None) -> None:
        """Train on each row once.

        Args:
            loader: the batches.
            rows: all rows, for messages.
            cycle: the cycle of the learning rate; None keeps the rate.
        """
        losses = []
        self.network_.train()
        for batch, labels, weight in loader:
            lengths = self.network_(batch.to(self.device)).activation
            terms = cross_entropy(
                _INVERSE_TEMPERATURE * lengths, labels.to(self.device), reduction="none"
            )
            loss = (weight.to(self.device) * terms).mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            if cycle is not None:
                cycle.step()
            losses.append(loss.item())
        self.network_.eval()
        self.loss_curve_.append(float(np.mean(losses)))
        _check_loss(self.loss_curve_, rows)

    def _warn_if_dead(self, rows: Tensor) -> None:
        """Warn if nothing of the rows gets to the classes."""
        with torch.no_grad():
            lengths = self._lengths(rows)
        least, most = lengths.aminmax(dim=0)
        if len(rows.unique(dim=0)) > 1 and (most - least <= _ALIKE * most).all():
            warnings.warn(
                "CapsNetClassifier answers the same for all rows of X: scale them "
                "before (StandardScaler), or lower learning_rate",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _lengths(self, rows: Tensor) -> Tensor:
        """The lengths of the class capsules, (n, E)."""
        network = self.network_.to(self.device)
        parts = [network(part.to(self.device)).activation for part in rows.split(1024)]
        return torch.cat(parts)

    @torch.no_grad()
    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return the probability of each class, (n, E).

        Raises:
            ValueError: if rows are so large that the network's numbers overflow.
        """
        check_is_fitted(self)
        _check_rows(X)
        # ``copy`` because torch reads no array backwards, as X[::-1].
        checked = validate_data(self, X, dtype=np.float64, reset=False)
        rows = torch.from_numpy(checked.copy())
        lengths = self._lengths(rows)
        overflown = (~lengths.isfinite().all(1)).nonzero().flatten().tolist()
        if overflown:
            raise ValueError(
                f"X holds numbers up to {float(rows.abs().max()):.3g}, with which the "
                f"outputs of rows {overflown[:5]} are not finite: scale them before "
                "(StandardScaler)"
            )
        return (_INVERSE_TEMPERATURE * lengths).softmax(1).cpu().numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label of each row, (n,)."""
        most = self.predict_proba(X).argmax(1)
        return self.classes_[most]


def _bring(network: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> None:
    """Bring a network and the state of its optimizer to a device."""
    network.to(device)
    # Which brings the state to the device of the parameters.
    optimizer.load_state_dict(optimizer.state_dict())


def _check_loss(losses: list[float], rows: Tensor) -> None:
    """Raise a ValueError that names the likely cause if the last loss is not
    finite.
    """
    if np.isfinite(losses[-1]):
        return
    largest, feature = rows.abs().amax(0).max(0)
    raise ValueError(
        f"the loss of epoch {len(losses)} is {losses[-1]}: X holds numbers up to "
        f"{float(largest):.3g}, in feature {int(feature)}: scale it before "
        "(StandardScaler), or lower learning_rate"
    )


def _check_rows(X: Any) -> None:
    """Raise a ValueError for images that are not flattened, which names the argument
    for their shape.
    """
    shape: tuple[int, ...] = tuple(X.shape) if hasattr(X, "shape") else ()
    if len(shape) > 2:
        given, image_shape = "X", (1, *shape[1:])[-3:]
        if len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
            given, image_shape = "X.transpose(0, 3, 1, 2)", (shape[3], *shape[1:3])
        raise ValueError(
            f"X must be (n, F), a row for each image, got shape {tuple(shape)}: give "
            f"{given}.reshape({shape[0]}, -1), and image_shape={image_shape}, which is "
            f"(C, H, W), to CapsNetClassifier. Found array with dim {len(shape)}"
        )
