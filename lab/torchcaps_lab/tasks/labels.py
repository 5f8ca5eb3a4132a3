"""Common functions of the tasks that predict classes."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from torchcaps.models import ClassifierNetwork, Prediction, Thing
from torchcaps_lab.tasks.base import Answer


def check_classes(prediction: Prediction, network: ClassifierNetwork) -> None:
    """Raise a `ValueError` if a network answers with slots.

    Args:
        prediction: its prediction.
        network: the network, for the message.
    """
    if prediction.masks is not None:
        raise ValueError(
            f"{type(network).__name__} answers with slots, which are no classes: add "
            "--task objects, or choose another --model"
        )


def answers_of(
    prediction: Prediction,
    predicted: Tensor,
    probabilities: Tensor,
    classes: Sequence[str],
) -> list[Answer]:
    """An answer for each image.

    Args:
        prediction: the prediction of B images.
        predicted: the predicted classes, bool (B, E).
        probabilities: (B, E).
        classes: their names.
    """
    poses = None if prediction.capsules is None else prediction.capsules.pose
    answers = []
    for image, activation in enumerate(prediction.activation):
        order = [
            index
            for index in activation.argsort(descending=True).tolist()
            if predicted[image, index]
        ]
        answers.append(
            Answer(
                tuple(classes[index] for index in order),
                dict(zip(classes, probabilities[image].tolist(), strict=True)),
                dict(zip(classes, activation.tolist(), strict=True)),
                None
                if poses is None
                else dict(zip(classes, poses[image], strict=True)),
                things=None
                if prediction.boxes is None
                else {
                    classes[index]: [
                        Thing(
                            index,
                            activation[index].item(),
                            prediction.boxes[image, index].float(),
                        )
                    ]
                    for index in order
                },
            )
        )
    return answers


def class_text(figures: Mapping[str, float | int | None]) -> str:
    """Precision and recall of a class as text; a dash if one is undefined."""
    shares = ((name, figures[name]) for name in ("precision", "recall"))
    return ", ".join(
        f"{name} {'-' if share is None else f'{share:.2%}'}" for name, share in shares
    )


def finite_warning(
    activation: Tensor, so: str = "the figures say nothing about these"
) -> tuple[str, ...]:
    """A warning if activations (N, E) are not finite, and what that means; none
    otherwise.
    """
    bad = int((~activation.isfinite()).any(1).sum())
    if not bad:
        return ()
    return (f"the activations of {bad:,} of {len(activation):,} are not finite: {so}",)
