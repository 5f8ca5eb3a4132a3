"""Adversarial images: capsules against a CNN of the same clean accuracy (Hinton, Sabour & Frosst 2018, section 5)."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.data import ImageSet, Preprocess
from torchcaps.explain import new_figure, shorten
from torchcaps.models import ImageClassifier
from torchcaps.recipes import smallnorb
from torchcaps.recipes.base import Line, Outcome, Picture, Recipe, register_recipe
from torchcaps.recipes.lab import Lab, Trained, data_of, run_name
from torchcaps.recipes.options import adam, option
from torchcaps.recipes.smallnorb import SmallNORBEM, SmallNORBSettings
from torchcaps.routing import DynamicRouting, EMRouting

HINTON = "Hinton, Sabour & Frosst 2018, section 5"

CAPSULES, CNN = "matrix capsules", "convolutional network"
NETWORKS: dict[str, str] = {CAPSULES: smallnorb.BASE, CNN: smallnorb.CNN}
"""The rows, and the rows of ``smallnorb-em`` whose options they are trained with."""

IN_TABLE: dict[str, tuple[float, ...]] = {"FGSM": (0.01, 0.1), "BIM": (0.01,)}
"""The attacks, and each epsilon that is in the table: one that they share, and one as large as the paper's."""

UNTARGETED, TARGETED = "untargeted", "targeted"
WHITE, BLACK = "white box", "black box"
CLEAN, NOISE, ZEROS = "accuracy, no attack", "accuracy, random signs 0.1", "zeros in the gradient, no attack"


class Key(NamedTuple):
    """Which curve.

    Args:
        network: that classifies.
        attack: FGSM or BIM.
        goal: untargeted or targeted.
        box: white for images that were made on the network itself, black for those made on the other one.
    """

    network: str
    attack: str
    goal: str
    box: str

    def measure(self, epsilon: float) -> str:
        """What the table calls its value at an epsilon."""
        what = "accuracy" if self.goal == UNTARGETED else "taken for the target"
        return f"{what}, {self.attack} {epsilon:g}, {self.goal}, {self.box}"


KEYS = tuple(
    Key(network, attack, goal, box)
    for network in NETWORKS
    for attack in IN_TABLE
    for goal in (UNTARGETED, TARGETED)
    for box in (WHITE, BLACK)
)


class Curve(NamedTuple):
    """What a network says of adversarial images, in percent of the images.

    Args:
        epsilon: largest change of a pixel, whose values lie in [0, 1]; the first is 0.
        accuracy: classified as what they show.
        success: classified as the target of the targeted attack.
    """

    epsilon: list[float]
    accuracy: list[float]
    success: list[float]


class Sample(NamedTuple):
    """Test images to attack.

    Args:
        pixels: cropped but not standardised, float (N, C, H, W) in [0, 1].
        labels: (N,).
        targets: a wrong class for each, (N,).
    """

    pixels: Tensor
    labels: Tensor
    targets: Tensor


def draw_sample(test: ImageSet, preprocess: Preprocess, count: int, seed: int = 0) -> Sample:
    """Chooses test images, and a target for each, every wrong class equally likely.

    Args:
        test: where they come from.
        preprocess: how they are cropped.
        count: how many; all if there are fewer.
        seed: of the choice.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(test), generator=generator)[:count].sort().values
    batch = test.prepared(preprocess).__getitems__(chosen.tolist())
    classes = len(test.classes)
    further = torch.randint(1, classes, batch.labels.shape, generator=generator)
    return Sample(batch.pictures, batch.labels, (batch.labels + further) % classes)


class Scores(nn.Module):
    r"""From pixels in [0, 1] to the logarithms of the class activations: what is attacked.

    The network's own preparation, such as standardising, is part of it, so that a change of a pixel is in units of
    its range. Cross-entropy of these scores is :math:`-\log (a_t / \sum_j a_j)`: for a network that ends in a softmax
    the loss that it was trained with. Unlike the spread loss it never becomes exactly flat where the true class leads
    by the margin, and :math:`\partial \log a / \partial x = (1 - a) \partial z / \partial x` does not vanish where a
    logistic activation :math:`a = \sigma(z)` is close to 0. The gradient goes through all steps of routing, also where
    it did not in the training: an attack that does not see the first ones would flatter the network.

    Args:
        network: is copied.
        preprocess: how it sees images.
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
        activation = self.network(self.preprocess.evaluate(pixels).images).activation.float()
        return activation.clamp_min(torch.finfo(activation.dtype).tiny).log()


def attack_library() -> SimpleNamespace:
    """What is used of the Adversarial Robustness Toolbox.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        from art.attacks.evasion import BasicIterativeMethod, FastGradientMethod
        from art.estimators.classification import PyTorchClassifier
    except ImportError as error:
        raise ImportError(
            "the recipe 'adversarial' needs the Adversarial Robustness Toolbox: pip install 'torchcaps[recipes]'"
        ) from error
    return SimpleNamespace(BIM=BasicIterativeMethod, FGSM=FastGradientMethod, Classifier=PyTorchClassifier)


class Attacker:
    """Makes adversarial images on a network, with the Adversarial Robustness Toolbox, and says what the network says.

    Args:
        scores: of the classes, from pixels in [0, 1]; the highest is the network's answer.
        image_shape: (C, H, W) of the pixels.
        classes: how many.
        steps: of BIM, each as large as a ``steps``-th of epsilon.
        batch_size: how many images at a time.
        device: where; one that the toolbox does not know is replaced by the CPU.
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
        self.library = attack_library()
        self.steps = steps
        self.batch_size = batch_size
        self.classifier = self.library.Classifier(
            model=scores,
            loss=nn.CrossEntropyLoss(reduction="sum"),
            input_shape=image_shape,
            nb_classes=classes,
            clip_values=(0.0, 1.0),
            device_type="gpu" if device is not None and device.type == "cuda" else "cpu",
        )

    def attacked(self, attack: str, epsilon: float, pixels: Tensor, labels: Tensor, targeted: bool) -> Tensor:
        """Adversarial images, (N, C, H, W) on the CPU, no pixel of which is more than epsilon off.

        Args:
            attack: FGSM or BIM.
            epsilon: the largest change of a pixel.
            pixels: (N, C, H, W) in [0, 1].
            labels: (N,), the classes to get away from or, if ``targeted``, to get to.
            targeted: which of them.
        """
        if not epsilon:
            return pixels.clone()
        options: dict[str, Any] = {"eps": epsilon, "targeted": targeted, "batch_size": self.batch_size}
        if attack == "BIM":
            options |= {"eps_step": epsilon / self.steps, "max_iter": self.steps, "verbose": False}
        method = getattr(self.library, attack)(self.classifier, **options)
        return torch.from_numpy(method.generate(x=pixels.numpy(), y=labels.numpy()))

    def answers(self, pixels: Tensor) -> Tensor:
        """The most active class of each image, (N,)."""
        return torch.from_numpy(self.classifier.predict(pixels.numpy(), batch_size=self.batch_size).argmax(1))

    def zeros(self, pixels: Tensor, labels: Tensor) -> float:
        """The share, in percent, of pixels in which the loss has the gradient zero: those stay as they are."""
        parts = zip(pixels.split(self.batch_size), labels.split(self.batch_size), strict=True)
        one_hot = nn.functional.one_hot
        gradients = [
            self.classifier.loss_gradient(x.numpy(), one_hot(y, self.classifier.nb_classes).numpy()) for x, y in parts
        ]
        return 100 * sum(int((one == 0).sum()) for one in gradients) / pixels.numel()


def percent(hits: Tensor) -> float:
    """The share of true values in percent."""
    return 100 * hits.double().mean().item()


def attack_all(
    attackers: Mapping[str, Attacker], sample: Sample, epsilons: Mapping[str, Sequence[float]]
) -> dict[Key, Curve]:
    """Attacks every network with each method and goal, and shows the images to all networks.

    Args:
        attackers: by network.
        sample: the images.
        epsilons: of each attack; 0, no attack, is put before them.
    """
    clean = {network: attacker.answers(sample.pixels) for network, attacker in attackers.items()}
    curves: dict[Key, Curve] = {}
    for source, attacker in attackers.items():
        for attack, values in epsilons.items():
            for goal in (UNTARGETED, TARGETED):
                aim = sample.targets if goal == TARGETED else sample.labels
                for epsilon in (0.0, *values):
                    images = attacker.attacked(attack, epsilon, sample.pixels, aim, goal == TARGETED)
                    for network, judge in attackers.items():
                        said = judge.answers(images) if epsilon else clean[network]
                        key = Key(network, attack, goal, WHITE if network == source else BLACK)
                        curve = curves.setdefault(key, Curve([], [], []))
                        curve.epsilon.append(epsilon)
                        curve.accuracy.append(percent(said == sample.labels))
                        curve.success.append(percent(said == sample.targets))
    return curves


def random_signs(attacker: Attacker, sample: Sample, epsilons: Sequence[float], seed: int = 0) -> Curve:
    """What a network says of images whose every pixel went up or down by epsilon at random: no attack, but noise."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, sample.pixels.shape, generator=generator) * 2.0 - 1
    curve = Curve([], [], [])
    for epsilon in (0.0, *epsilons):
        said = attacker.answers((sample.pixels + epsilon * signs).clamp(0, 1))
        curve.epsilon.append(epsilon)
        curve.accuracy.append(percent(said == sample.labels))
        curve.success.append(percent(said == sample.targets))
    return curve


@dataclass(frozen=True)
class AdversarialSettings:
    """One preset.

    Attributes:
        networks: what both are trained with, settings of the recipe ``smallnorb-em``.
        epochs: of the convolutional network at most.
        share: of the training images in an epoch of the convolutional network: it shall end close to the accuracy of
            the capsules, and reaches it within an epoch of all images.
        images: how many test images are attacked.
        epsilons: of each attack, in units of the pixels' range.
        steps: of BIM.
        batch_size: how many images are attacked at a time.

    Raises:
        ValueError: if an attack lacks an epsilon that is in the table.
    """

    networks: SmallNORBSettings
    epochs: int
    share: float = 1.0
    images: int = 1000
    epsilons: Mapping[str, tuple[float, ...]] = field(
        default_factory=lambda: {
            "FGSM": (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4),
            "BIM": (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1),
        }
    )
    steps: int = 10
    batch_size: int = 100

    def __post_init__(self) -> None:
        for attack, needed in IN_TABLE.items():
            given = self.epsilons.get(attack, ())
            if not set(needed) <= set(given):
                raise ValueError(f"epsilons of {attack} must hold {needed}, got {given}")


def job(settings: AdversarialSettings, row: str, stop_at: float | None = None) -> tuple[str, dict[str, Any]]:
    """Name of the run and options of ``torchcaps train`` for a row, as :meth:`Lab.train` takes them.

    Args:
        settings: of a preset. Where its networks are those of a preset of ``smallnorb-em``, the capsules are shared.
        row: matrix capsules or convolutional network.
        stop_at: validation accuracy at which the convolutional network is done.
    """
    name, config = smallnorb.job(settings.networks, NETWORKS[row])
    if row == CNN:
        extra = {"limit_train_batches": settings.share} if settings.share < 1 else {}
        config |= {"epochs": settings.epochs, "trainer": {**config["trainer"], "extra": extra}}
        if stop_at is not None:
            config["stop_at"] = stop_at
    if row == CNN or settings.networks not in SmallNORBEM.presets.values():
        name = run_name("adversarial", row)
    return name, config


_RECALLED = {
    (CAPSULES, 0.1): f"{HINTON}: a curve, never below chance, 20 %; recalled",
    (CNN, 0.1): f"{HINTON}: a curve, far below chance, 20 %, at 0.2; recalled",
}


def _lines() -> tuple[Line, ...]:
    lines = []
    for network in NETWORKS:
        lines.append(Line(network, CLEAN, higher_is_better=True))
        lines.append(Line(network, NOISE, higher_is_better=True))
        for key in KEYS:
            if key.network == network:
                first = (key.attack, key.goal, key.box) == ("FGSM", UNTARGETED, WHITE)
                for epsilon in IN_TABLE[key.attack]:
                    source = _RECALLED.get((network, epsilon), "") if first else ""
                    untargeted = key.goal == UNTARGETED
                    lines.append(Line(network, key.measure(epsilon), None, source, higher_is_better=untargeted))
        lines.append(Line(network, ZEROS, higher_is_better=None))
    return tuple(lines)


_TINY = SmallNORBSettings(
    data=option("Digits", size=20),
    epochs=3,
    cnn_epochs=3,
    optimizer=adam(1e-2),
    cnn_optimizer=adam(3e-3),
    model_args={"channels": 8, "types": [3, 3, 3], "competition": "window"},
    routing={"schedule": "linear", "inverse_temperature": 1.0, "standardise": True},
    cnn_args={"channels": [4, 8], "hidden": 16},
    preprocess={"crop": 18, "standardise": True},
)


@register_recipe
class Adversarial(Recipe[AdversarialSettings]):
    """Attacks a matrix capsule network and a convolutional one of the same accuracy, each on itself and on the other.

    Source: Hinton, Sabour & Frosst 2018, section 5.
    """

    name: ClassVar[str] = "adversarial"
    title: ClassVar[str] = "adversarial images against matrix capsules and a convolutional network"
    source: ClassVar[str] = HINTON
    lines: ClassVar[tuple[Line, ...]] = _lines()
    presets: ClassVar = {
        "paper": AdversarialSettings(
            networks=replace(SmallNORBEM.presets["paper"], data=option("SmallNORB", validation=0.02)),
            epochs=1000,
            share=0.1,
            images=24300,
            batch_size=500,
        ),
        "quick": AdversarialSettings(networks=SmallNORBEM.presets["quick"], epochs=100, share=0.05),
        "smoke": AdversarialSettings(
            networks=_TINY,
            epochs=10,
            share=0.5,
            images=30,
            epsilons={"FGSM": (0.01, 0.1), "BIM": (0.01, 0.1)},
            steps=3,
        ),
    }
    notes: ClassVar[tuple[str, ...]] = (
        smallnorb.LOSSY,
        "Published as curves only. The paper's reading of them: targeted and untargeted attacks in the white box cost "
        "the capsules much less than the convolutional network, in the black box about as much (recalled).",
        "Both networks have the same accuracy on validation images: the convolutional one ends with the first part of "
        "an epoch (see the settings) that reaches the capsules' last one, rounded down to 3 decimals. Accuracy on the "
        "test images, other toys, may differ; 'no attack' gives it for the images that were attacked.",
        "Epsilon is the largest change of a pixel, whose values lie in [0, 1]; the result is clipped to that range and "
        "only then standardised. The paper's epsilons go up to 0.4; whether in these units is not known. BIM takes "
        "steps (see the settings: 10) of an equal share of epsilon. Which epsilons stand in the table was chosen by "
        "looking at 30 test images of two other networks; the curves show all. FGSM and BIM are those of the "
        "Adversarial Robustness Toolbox.",
        "Untargeted attacks go away from the true class, targeted ones towards one wrong class for each image, drawn "
        "at random, the same for all (the paper averages over every class as the target; recalled). Without an "
        "attack, 'taken for the target' counts those mistakes that happen to be the target.",
        "The attack's loss is -log of the share that the true (or target) class has of all activations, for both "
        "networks: the convolutional one's training loss. The spread loss, which the capsules are trained with, is "
        "flat wherever the true class leads by the margin: attacks on it would fail for want of a gradient, which is "
        "no robustness.",
        "The gradient of an attack goes through all steps of routing, also where the training's did not.",
        "Gradients can still mislead: 'zeros in the gradient' counts pixels that FGSM cannot change, 'random signs' is "
        "noise of the same size. A white box that costs less than the black box, or BIM less than FGSM at the same "
        "epsilon, means that the gradient hides a weakness. No attack adapted to routing was tried: resistance to "
        "these two is no proof of robustness.",
    )

    def run(self, lab: Lab, settings: AdversarialSettings) -> Outcome:
        """Trains both networks, attacks both, and shows each what was made on the other."""
        attack_library()
        capsules = lab.train(*job(settings, CAPSULES))
        stop_at = capsules.accuracy_to_match
        trained = {CAPSULES: capsules, CNN: lab.train(*job(settings, CNN, stop_at))}
        test = data_of(settings.networks.data).test
        preprocess = Preprocess.from_config(capsules.network.extra["preprocess"])
        sample = draw_sample(test, preprocess, settings.images)
        attackers = {row: _attacker(one, preprocess, settings, lab.device) for row, one in trained.items()}
        start = time.perf_counter()
        curves = attack_all(attackers, sample, settings.epsilons)
        noise = {row: random_signs(one, sample, settings.epsilons["FGSM"]) for row, one in attackers.items()}
        figures = _figures(curves, noise)
        for row, attacker in attackers.items():
            figures[row, ZEROS] = attacker.zeros(sample.pixels, sample.labels)
        seconds = round(time.perf_counter() - start, 1)
        for (row, measure), value in figures.items():
            lab.show(f"{row}, {measure}: {value:.2f} %")
        facts = {
            row: {
                **one.facts,
                "validation_accuracy": one.validation_accuracy,
                "test_accuracy": one.summary["test_accuracy"],
                "attacked_images": len(sample.labels),
                "seconds_of_all_attacks": seconds,
            }
            for row, one in trained.items()
        }
        pictures = {
            "curves": draw_curves(curves, noise, 100 / len(test.classes)),
            "images": draw_images(attackers, sample, settings.epsilons["FGSM"], test.classes),
        }
        return Outcome(figures, facts, pictures, _as_json(curves, noise))


def _attacker(one: Trained, preprocess: Preprocess, settings: AdversarialSettings, device: torch.device) -> Attacker:
    network = one.network
    return Attacker(
        Scores(network, preprocess),
        network.image_shape,
        network.classes,
        settings.steps,
        settings.batch_size,
        device,
    )


def _figures(curves: Mapping[Key, Curve], noise: Mapping[str, Curve]) -> dict[tuple[str, str], float]:
    """The values of the table's lines."""
    figures = {}
    for network, curve in noise.items():
        figures[network, CLEAN] = curve.accuracy[0]
        figures[network, NOISE] = curve.accuracy[curve.epsilon.index(0.1)]
    for key, curve in curves.items():
        values = curve.accuracy if key.goal == UNTARGETED else curve.success
        for epsilon in IN_TABLE[key.attack]:
            figures[key.network, key.measure(epsilon)] = values[curve.epsilon.index(epsilon)]
    return figures


def _as_json(curves: Mapping[Key, Curve], noise: Mapping[str, Curve]) -> dict[str, Any]:
    named = {", ".join(key): curve for key, curve in curves.items()}
    named |= {f"{network}, random signs": curve for network, curve in noise.items()}
    return {name: curve._asdict() for name, curve in named.items()}


_COLOURS = {CAPSULES: "C0", CNN: "C1"}


def draw_curves(curves: Mapping[Key, Curve], noise: Mapping[str, Curve], chance: float) -> Picture:
    """Accuracy against epsilon, and how often the target is reached, for FGSM and BIM.

    Args:
        curves: of the attacks.
        noise: of random signs, by network.
        chance: accuracy of a guess, percent.
    """
    figure = new_figure(9.0, 6.6)
    panels = figure.subplots(len(IN_TABLE), 2, sharey=True, sharex="row")
    for row, attack in enumerate(IN_TABLE):
        for column, goal in enumerate((UNTARGETED, TARGETED)):
            axes = panels[row][column]
            for network in NETWORKS:
                for box, style in ((WHITE, "-"), (BLACK, "--")):
                    curve = curves[Key(network, attack, goal, box)]
                    values = curve.accuracy if goal == UNTARGETED else curve.success
                    label = f"{network}, {box}"
                    axes.plot(curve.epsilon, values, style, color=_COLOURS[network], marker=".", label=label)
                if attack == "FGSM":
                    values = noise[network].accuracy if goal == UNTARGETED else noise[network].success
                    label = f"{network}, random signs"
                    axes.plot(noise[network].epsilon, values, ":", color=_COLOURS[network], label=label)
            axes.axhline(chance, color="grey", linewidth=0.8, label=f"chance, {chance:g} %")
            axes.set_title(f"{attack}, {goal}", fontsize=10)
            epsilons = curves[Key(CAPSULES, attack, goal, WHITE)].epsilon
            axes.set_xscale("symlog", linthresh=epsilons[1], linscale=0.3)  # linear only from 0 to the first
            axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], fontsize=7)
            axes.set_xticks([], minor=True)
            axes.set_xlabel("epsilon, largest change of a pixel in [0, 1]; logarithmic", fontsize=9)
            axes.set_ylabel("accuracy, %" if goal == UNTARGETED else "taken for the target, %", fontsize=9)
            axes.yaxis.set_tick_params(labelleft=True)
            axes.set_ylim(-2, 102)
            axes.grid(alpha=0.3)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    caption = (
        "Left: accuracy under untargeted attacks. Right: images that targeted attacks make the network take for the "
        "target, a random wrong class. White box: images made on the network itself; black box: made on the other "
        "network; random signs (upper row): noise of the same size. Chance is a guess among all classes."
    )
    return Picture(figure, caption)


def draw_images(
    attackers: Mapping[str, Attacker], sample: Sample, epsilons: Sequence[float], classes: Sequence[str]
) -> Picture:
    """Two test images with growing epsilon, and what each network says of what was made on it.

    Args:
        attackers: by network.
        sample: to choose from: the first image of each of two classes that all networks know, if there are.
        epsilons: of FGSM.
        classes: their names.
    """
    chosen = _two_images(attackers, sample)
    steps = (0.0, *epsilons)
    rows = [(place, network) for place in chosen for network in attackers]
    figure = new_figure(1.05 * len(steps) + 1.6, 1.4 * len(rows) + 0.5)
    grid = figure.subplots(len(rows), len(steps), squeeze=False)
    for line, (place, network) in zip(grid, rows, strict=True):
        pixels, label = sample.pixels[place : place + 1], sample.labels[place : place + 1]
        for axes, epsilon in zip(line, steps, strict=True):
            image = attackers[network].attacked("FGSM", epsilon, pixels, label, targeted=False)
            said = int(attackers[network].answers(image))
            axes.imshow(image[0, 0].numpy(), cmap="gray", vmin=0, vmax=1)
            colour = "black" if said == int(label) else "tab:red"
            axes.set_title(f"ε {epsilon:g}\n{shorten(classes[said], 12)}", fontsize=8, color=colour)
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(network.replace(" ", "\n"), fontsize=8)
    caption = (
        "Test images after untargeted FGSM in the white box, with growing epsilon (largest change of a pixel in "
        "[0, 1]). Above each: the class that the network at the left says, red where it is wrong. Of a stereo pair the "
        "first image is shown."
    )
    return Picture(figure, caption)


def _two_images(attackers: Mapping[str, Attacker], sample: Sample) -> list[int]:
    """Places of the first image that all networks know, and of the first such one of another class."""
    known = torch.stack([one.answers(sample.pixels) == sample.labels for one in attackers.values()]).all(0)
    first = int(known.int().argmax())
    other = (sample.labels != sample.labels[first]) & (known if bool(known.any()) else True)
    return [first, int(other.int().argmax())]
