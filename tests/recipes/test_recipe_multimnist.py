import pytest
import torch

from torchcaps.data import Digits, ImageSet
from torchcaps.models import create_model
from torchcaps.recipes import run_recipe
from torchcaps.recipes.multimnist import (
    CAPSULES,
    CNN,
    ERROR,
    Overlaid,
    Overlay,
    bounding_box_overlap,
    exact_pairs,
    fixed_pairs,
    pair_error,
)


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return Digits().test


def overlaid(digits: ImageSet, count: int = 50, size: int = 13, shift: int = 2, seed: int = 0) -> Overlaid:
    return fixed_pairs(Overlay(digits, size, shift), count, seed)


class TestOverlay:
    def test_two_classes_one_clipped_sum(self, digits):
        images, parts, labels = overlaid(digits)
        assert images.shape == (50, 1, 13, 13)
        assert parts.shape == (50, 2, 1, 13, 13)
        assert (labels[:, 0] != labels[:, 1]).all()
        assert torch.equal(labels[:, 0], digits.labels[:50])
        torch.testing.assert_close(images, parts.sum(1).clamp(max=1), rtol=0, atol=0)
        assert images.max() == 1.0

    @pytest.mark.parametrize(("size", "shift"), [(13, 2), (12, 2), (8, 0), (15, 3)])
    def test_each_part_is_a_digit_of_its_class_within_the_shift(self, digits, size, shift):
        _, parts, labels = overlaid(digits, 60, size, shift)
        known = {
            (image.numpy().tobytes(), int(label)) for image, label in zip(digits.images, digits.labels, strict=True)
        }
        allowed = range((size - 8) // 2 - shift, (size - 8) // 2 + shift + 1)
        for pair, classes in zip((255 * parts).round().to(torch.uint8), labels.tolist(), strict=True):
            for part, label in zip(pair, classes, strict=True):
                found = [
                    (row, column)
                    for row in allowed
                    for column in allowed
                    if (part[:, row : row + 8, column : column + 8].contiguous().numpy().tobytes(), label) in known
                    and part.sum() == part[:, row : row + 8, column : column + 8].sum()
                ]
                assert found

    def test_all_shifts_are_as_likely(self):
        dot = ImageSet(torch.full((2, 1, 1, 1), 255, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
        _, parts, _ = fixed_pairs(Overlay(dot, 5, 2), 5000, 0)
        heat = parts.mean((0, 1, 2))
        assert (heat - 1 / 25).abs().max() < 0.006  # four standard deviations of 10,000 draws

    def test_partners_are_all_as_likely(self):
        labels = torch.tensor([0, 0, 0, 1, 2, 2])
        images = (torch.arange(6) * 40 + 10).to(torch.uint8).view(6, 1, 1, 1)
        overlay = Overlay(ImageSet(images, labels, ("a", "b", "c")), 1, 0)
        generator = torch.Generator().manual_seed(0)
        for label in range(3):
            chosen = overlay._others(torch.full((6000,), label), generator)
            counts = torch.bincount(chosen, minlength=6).double() / 6000
            expected = (labels != label).double() / (labels != label).sum()
            assert (counts - expected).abs().max() < 0.03

    def test_seed(self, digits):
        one, two, three = (overlaid(digits, seed=seed).images for seed in (0, 0, 1))
        assert torch.equal(one, two)
        assert not torch.equal(one, three)

    def test_a_digit_stays_on_the_image(self, digits):
        with pytest.raises(ValueError, match="shift must be from 0 to 2 for digits of 8 x 8 on 12 x 12, got 3"):
            Overlay(digits, 12, 3)


def test_bounding_box_overlap():
    parts = torch.zeros(3, 2, 1, 10, 10)
    parts[0, 0, 0, 2:6, 2:6] = 1  # 4 x 4
    parts[0, 1, 0, 4:8, 3:6] = 1  # 4 x 3: 2 x 3 in common
    parts[1, 0, 0, 0:2, 0:2] = 1
    parts[1, 1, 0, 5:7, 5:7] = 1  # apart
    parts[2, 0, 0, 1:9, 1:9] = 1
    parts[2, 1, 0, 3:5, 3:5] = 1  # inside
    torch.testing.assert_close(bounding_box_overlap(parts), torch.tensor([6 / 12, 0.0, 1.0]))


def test_exact_pairs():
    activation = torch.tensor([[0.9, 0.1, 0.8], [0.2, 0.9, 0.3], [0.9, 0.8, 0.1]])
    labels = torch.tensor([[2, 0], [0, 1], [0, 1]])
    assert exact_pairs(activation, labels).tolist() == [True, False, True]


def test_pair_error_has_no_half_credit(digits):
    pairs = overlaid(digits, 20, 12, 2)
    network = create_model("capsnet_digits", image_shape=(1, 12, 12), channels=4, types=1, decoder_hidden=[4])
    right = exact_pairs(network.eval()(pairs.images).activation, pairs.labels)
    assert pair_error(network, pairs, batch_size=7) == pytest.approx(100 * (1 - right.double().mean().item()))


def test_smoke(tmp_path):
    where = {"runs": tmp_path / "runs", "results": tmp_path / "results", "trainer": {"accelerator": "cpu"}}
    result = run_recipe("multimnist", "smoke", **where)
    ours = {(row["row"], row["measure"]): row["ours"] for row in result["rows"]}
    assert 0 <= ours[CAPSULES, ERROR][0] <= 100
    assert 0 <= ours[CNN, ERROR][0] <= 100
    assert 40 < ours["test pairs", "overlap of the bounding boxes"][0] < 100
    (picture,) = result["pictures"]
    assert (tmp_path / "results" / picture["file"]).is_file()
    runs = sorted(path.parent for path in (tmp_path / "runs" / "smoke").glob("*/config.yaml"))
    before = [(run / "summary.json").stat().st_mtime_ns for run in runs]
    metrics = [(run / "metrics.csv").read_text() for run in runs]
    (runs[0] / "summary.json").unlink()  # as if killed just before the end
    again = run_recipe("multimnist", "smoke", **where)
    assert again["rows"] == result["rows"]
    assert [(run / "metrics.csv").read_text() for run in runs] == metrics
    assert (runs[1] / "summary.json").stat().st_mtime_ns == before[1]


def test_training_learns_pairs(tmp_path):
    """A network that is given the same pairs again and again tells them."""
    digits = Digits().train
    few = digits.subset(torch.arange(40))
    pairs = fixed_pairs(Overlay(few, 10, 1), 40, 0)
    torch.manual_seed(0)
    network = create_model("capsnet_digits", image_shape=(1, 10, 10), channels=16, types=4, decoder_hidden=None)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    from torchcaps.losses import margin_loss

    mask = torch.zeros(40, 10).scatter_(1, pairs.labels, 1.0)
    for _ in range(120):
        loss = margin_loss(network(pairs.images).activation, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert pair_error(network, pairs) < 20
