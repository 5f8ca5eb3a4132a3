"""Adversarial images: networks attacked on themselves and on each other."""

import copy
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from recipes.kit.measures import percent
from torchcaps.models import ImageClassifier
from torchcaps.routing import DynamicRouting, EMRouting
from torchcaps.spec import Size, Within, check
from torchcaps_lab.data import Examples, Preprocess
from torchcaps_lab.report import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNTARGETED, TARGETED = "untargeted", "targeted"
WHITE, BLACK = "white box", "black box"


class Key(NamedTuple):
    """Which curve.

    Args:
        network: the network that classifies the images.
        attack: the attack, FGSM or BIM.
        goal: the goal of the attack, untargeted or targeted.
        box: white for images that were made on the network itself, black for those made
            on another one.
    """

    network: str
    attack: str
    goal: str
    box: str


class Curve(NamedTuple):
    """What a network predicts for adversarial images, in percent of the images.

    Args:
        epsilon: the largest change of a pixel, whose values lie in [0, 1]; the first is
            0.
        accuracy: the share of images that are classified as what they show.
        success: the share of images that are classified as the target of the attack.
    """

    epsilon: list[float]
    accuracy: list[float]
    success: list[float]

    def add(
        self,
        epsilon: float,
        predicted: Tensor,
        sample: "Sample",
    ) -> None:
        """Adds a point: the predictions for a sample that was changed by epsilon."""
        self.epsilon.append(epsilon)
        self.accuracy.append(percent(predicted == sample.labels))
        self.success.append(percent(predicted == sample.targets))


def judged_by(curve: Curve, goal: str) -> list[float]:
    """What an attack is judged by: the accuracy, or how often it reached its target."""
    return curve.accuracy if goal == UNTARGETED else curve.success


class Sample(NamedTuple):
    """Test images to attack.

    Args:
        pixels: the images, cropped but not standardised, float (N, C, H, W) in [0, 1].
        labels: the true classes, (N,).
        targets: a wrong class for each image, (N,).
    """

    pixels: Tensor
    labels: Tensor
    targets: Tensor


def draw_sample(
    test: Examples,
    preprocess: Preprocess,
    count: int,
) -> Sample:
    """Chooses test images, and a target for each, every wrong class equally likely.

    Args:
        test: the test images to choose from.
        preprocess: the preprocessing that crops the images.
        count: the number of images, at least 1; all if there are fewer.

    Raises:
        ValueError: if ``count`` is no whole number, or less than 1.
    """
    check(Size, count, "count")
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(test), generator=generator)[:count].sort().values
    batch = test.prepared(preprocess).__getitems__(chosen.tolist())
    classes = len(test.classes)
    further = torch.randint(
        1,
        classes,
        batch.labels.shape,
        generator=generator,
    )
    return Sample(batch.pictures, batch.labels, (batch.labels + further) % classes)


class Scores(nn.Module):
    r"""From pixels in [0, 1] to the logarithms of the class activations: what is
    attacked.

    The network's own preparation, such as standardising, is part of it, so that a
    change of a pixel is in units of its range. Cross-entropy of these scores is
    :math:`-\log (a_t / \sum_j a_j)`: for a network that ends in a softmax the loss that
    it was trained with. Unlike the spread loss it never becomes exactly flat where the
    true class leads by the margin, and :math:`\partial \log a / \partial x = (1 - a)
    \partial z / \partial x` does not vanish where a logistic activation :math:`a =
    \sigma(z)` is close to 0. The gradient goes through all steps of routing, also where
    it did not in the training: an attack that does not see the first ones would flatter
    the network.

    Args:
        network: the network to attack, which is copied.
        preprocess: the preprocessing of the network.
    """

    def __init__(self, network: ImageClassifier, preprocess: Preprocess) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(False).eval()
        self.preprocess = preprocess
        for module in self.network.modules():
            if isinstance(module, DynamicRouting | EMRouting):
                module.gradient = "all"

    def forward(self, pixels: Tensor) -> Tensor:
        """Log activations (B, E) of pixels (B, C, H, W)."""
        prepared = self.preprocess.evaluate(pixels).images
        activation = self.network(prepared).activation.float()
        return activation.clamp_min(torch.finfo(activation.dtype).tiny).log()


class Attacker:
    """Makes adversarial images on a network, with the Adversarial Robustness Toolbox,
    and predicts their classes.

    Args:
        scores: the network from pixels in [0, 1] to the scores of the classes, the
            highest of which is its answer.
        image_shape: the shape (C, H, W) of the images.
        classes: the number of classes.
        steps: the number of steps of BIM, each as large as a ``steps``-th of epsilon.
        batch_size: the number of images at a time.
        device: the device to compute on; anything but a GPU counts as the CPU, because
            the toolbox supports no others.

    Raises:
        ValueError: if ``classes``, ``steps`` or ``batch_size`` is no whole number, or
            less than 1.
    """

    def __init__(
        self,
        scores: nn.Module,
        image_shape: tuple[int, int, int],
        classes: int,
        steps: int = 10,
        batch_size: int = 100,
        device: torch.device | None = None,
    ) -> None:
        from art.estimators.classification import PyTorchClassifier

        check(Size, classes, "classes")
        check(Size, steps, "steps")
        check(Size, batch_size, "batch_size")
        self.steps = steps
        self.batch_size = batch_size
        on_gpu = device is not None and device.type == "cuda"
        self.classifier = PyTorchClassifier(
            model=scores,
            loss=nn.CrossEntropyLoss(reduction="sum"),
            input_shape=image_shape,
            nb_classes=classes,
            clip_values=(0.0, 1.0),
            device_type="gpu" if on_gpu else "cpu",
        )

    def attacked(
        self,
        attack: str,
        epsilon: float,
        pixels: Tensor,
        labels: Tensor,
        targeted: bool,
    ) -> Tensor:
        """Adversarial images, (N, C, H, W) on the CPU, no pixel of which is more than
        epsilon off.

        Args:
            attack: the attack, FGSM or BIM.
            epsilon: the largest change of a pixel, 0 or more.
            pixels: the images, (N, C, H, W) in [0, 1].
            labels: the classes to get away from or, if ``targeted``, to get to, (N,).
            targeted: whether the labels are the classes to get to.

        Raises:
            ValueError: if there is no such attack, or ``epsilon`` is negative or not
                finite.
        """
        from art.attacks.evasion import BasicIterativeMethod, FastGradientMethod

        check(Literal["FGSM", "BIM"], attack, "attack")
        Within(0).check("epsilon", epsilon)
        if not epsilon:
            return pixels.clone()
        options: dict[str, Any] = {
            "eps": epsilon,
            "targeted": targeted,
            "batch_size": self.batch_size,
        }
        if attack == "BIM":
            options |= {
                "eps_step": epsilon / self.steps,
                "max_iter": self.steps,
                "verbose": False,
            }
            method = BasicIterativeMethod(self.classifier, **options)
        else:
            method = FastGradientMethod(self.classifier, **options)
        return torch.from_numpy(method.generate(x=pixels.numpy(), y=labels.numpy()))

    def answers(self, pixels: Tensor) -> Tensor:
        """The most active class of each image, (N,)."""
        scores = self.classifier.predict(pixels.numpy(), batch_size=self.batch_size)
        return torch.from_numpy(scores.argmax(1))

    def zero_gradients(self, pixels: Tensor, labels: Tensor) -> float:
        """The share of pixels, in percent, that these attacks leave alone: the gradient
        of the loss is 0 there.
        """
        one_hot = nn.functional.one_hot(labels, self.classifier.nb_classes)
        batches = zip(
            pixels.split(self.batch_size), one_hot.split(self.batch_size), strict=True
        )
        zeros = 0
        for images, targets in batches:
            gradient = self.classifier.loss_gradient(images.numpy(), targets.numpy())
            zeros += int((gradient == 0).sum())
        return 100 * zeros / pixels.numel()


def attack_all(
    attackers: Mapping[str, Attacker],
    sample: Sample,
    epsilons: Mapping[str, Sequence[float]],
) -> dict[Key, Curve]:
    """Attacks every network with each method and goal, and shows the images to all
    networks.

    Args:
        attackers: the attackers, by the network that they attack.
        sample: the images.
        epsilons: the epsilons of each attack; 0, no attack, is put before them.

    Raises:
        ValueError: if an epsilon is negative or not finite.
    """
    points = {attack: _from_zero(values) for attack, values in epsilons.items()}
    clean = {
        network: attacker.answers(sample.pixels)
        for network, attacker in attackers.items()
    }
    curves: dict[Key, Curve] = {}
    for source, attack, goal in product(attackers, points, (UNTARGETED, TARGETED)):
        attacker = attackers[source]
        targeted = goal == TARGETED
        aim = sample.targets if targeted else sample.labels
        for epsilon in points[attack]:
            images = attacker.attacked(attack, epsilon, sample.pixels, aim, targeted)
            for network, judge in attackers.items():
                predicted = judge.answers(images) if epsilon else clean[network]
                box = WHITE if network == source else BLACK
                key = Key(network, attack, goal, box)
                curve = curves.setdefault(key, Curve([], [], []))
                curve.add(epsilon, predicted, sample)
    return curves


def random_signs(
    attacker: Attacker,
    sample: Sample,
    epsilons: Sequence[float],
) -> Curve:
    """What a network predicts for images whose every pixel went up or down by epsilon
    at random: no attack, but noise.

    Args:
        attacker: the attacker of the network.
        sample: the images.
        epsilons: the sizes of the noise; 0, no noise, is put before them.

    Raises:
        ValueError: if an epsilon is negative or not finite.
    """
    curve = Curve([], [], [])
    for epsilon in _from_zero(epsilons):
        noisy = with_signs(sample.pixels, epsilon)
        curve.add(epsilon, attacker.answers(noisy), sample)
    return curve


def with_signs(pixels: Tensor, epsilon: float) -> Tensor:
    """Pixels in [0, 1] that went up or down by epsilon at random."""
    generator = torch.Generator().manual_seed(0)
    up = torch.randint(0, 2, pixels.shape, generator=generator)
    signs = 2.0 * up - 1
    return (pixels + epsilon * signs).clamp(0, 1)


def _from_zero(epsilons: Sequence[float]) -> list[float]:
    """0, once, and behind it the other epsilons."""
    for epsilon in epsilons:
        Within(0).check("epsilon", epsilon)
    return [0.0, *(epsilon for epsilon in epsilons if epsilon)]


_STYLES = {WHITE: "-", BLACK: "--"}


def attack_curves(
    curves: Mapping[Key, Curve], noise: Mapping[str, Curve], chance: float
) -> Any:
    """Accuracy against epsilon, and how often the target is reached, for FGSM and BIM.

    Args:
        curves: the curves of the attacks.
        noise: the curve of random signs of each network.
        chance: the accuracy of a guess, in percent.
    """
    attacks = list(dict.fromkeys(key.attack for key in curves))
    figure = new_figure(9.0, 6.6)
    panels = figure.subplots(
        len(attacks),
        2,
        sharey=True,
        sharex="row",
    )
    for row, attack in enumerate(attacks):
        for axes, goal in zip(panels[row], (UNTARGETED, TARGETED), strict=True):
            for number, (network, of_noise) in enumerate(noise.items()):
                colour = f"C{number}"
                for box, style in _STYLES.items():
                    curve = curves[Key(network, attack, goal, box)]
                    label = f"{network}, {box}"
                    _plot(axes, curve, goal, style, ".", color=colour, label=label)
                if attack == "FGSM":
                    label = f"{network}, random signs"
                    _plot(axes, of_noise, goal, ":", "", color=colour, label=label)
            axes.axhline(
                chance, color="grey", linewidth=0.8, label=f"chance, {chance:g} %"
            )
            first_network = next(iter(noise))
            _set_axes(
                axes, attack, goal, curves[Key(first_network, attack, goal, WHITE)]
            )
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=3, fontsize=8, frameon=False
    )
    return figure


def _plot(
    axes: "Axes", curve: Curve, goal: str, style: str, marker: str, **look: Any
) -> None:
    values = judged_by(curve, goal)
    axes.plot(curve.epsilon, values, style, marker=marker, **look)


def _set_axes(
    axes: "Axes",
    attack: str,
    goal: str,
    curve: Curve,
) -> None:
    """Sets ticks, labels and limits of a panel."""
    epsilons = curve.epsilon
    # linear only from 0 to the first
    axes.set_xscale("symlog", linthresh=epsilons[1], linscale=0.3)
    axes.set_xticks(
        epsilons,
        [f"{epsilon:g}" for epsilon in epsilons],
        fontsize=7,
    )
    axes.set_xticks([], minor=True)
    axes.set_title(f"{attack}, {goal}", fontsize=10)
    axes.set_xlabel(
        "epsilon, largest change of a pixel in [0, 1]; logarithmic", fontsize=9
    )
    quantity = "accuracy, %" if goal == UNTARGETED else "taken for the target, %"
    axes.set_ylabel(quantity, fontsize=9)
    axes.yaxis.set_tick_params(labelleft=True)
    axes.set_ylim(-2, 102)
    axes.grid(alpha=0.3)
