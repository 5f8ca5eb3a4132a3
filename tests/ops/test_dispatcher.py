"""Which backend is at work, and what Votes refuse."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from torchcaps import CapsConv2d, CapsLinear, Capsules, create_routing, list_routings
from torchcaps.ops import (
    BACKENDS,
    Gaussian,
    InnerProduct,
    Votes,
    use_backend,
)
from torchcaps.ops.chunked import ChunkedVotes
from torchcaps.ops.fused import NativeVotes, library, why_not
from torchcaps.ops.naive import NaiveVotes
from torchcaps.ops.plan import (
    ASKED_FOR,
    FEW,
    FEW_ROWS,
    FEW_TILES,
    STORED_ROWS,
    Choice,
    Facts,
    plan,
)
from torchcaps.routing import DynamicRouting


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHCAPS_BACKEND", raising=False)


def votes(children: int = 3, backend: str | None = None) -> Votes:
    return Votes(torch.zeros(1, children, 4), torch.zeros(1, 2, 4, 8), backend=backend)


def chosen(children: int = 3) -> str:
    new_votes = votes(children)
    name = new_votes.choose_backend().backend
    assert type(new_votes.source) is BACKENDS[name]
    return name


@pytest.mark.usefixtures("kernels")
def test_small_votes_are_stored_and_large_ones_are_not() -> None:
    most = FEW["cpu"] // (2 * 8)
    assert chosen(most) == "naive"
    assert chosen(most + 1) == "native"
    assert isinstance(votes(3).source, NaiveVotes)
    assert isinstance(votes(most + 1).source, NativeVotes)


@pytest.mark.usefixtures("kernels")
def test_the_choice_says_why() -> None:
    most = FEW["cpu"] // (2 * 8)
    assert (
        f"at most {FEW['cpu']} numbers are stored on cpu"
        in votes(most).choose_backend().reason
    )
    assert (
        f"more than {FEW['cpu']} numbers are not stored on cpu"
        in votes(most + 1).choose_backend().reason
    )
    with use_backend("chunked"):
        assert votes().choose_backend() == (
            "chunked",
            "asked for by use_backend, backend= or TORCHCAPS_BACKEND",
        )


class TestPlan:
    """From plain facts, so that a machine without a GPU can plan for one."""

    few = Facts("cpu", FEW["cpu"], 1, vectors=True)
    many = few._replace(numbers=FEW["cpu"] + 1)

    def test_nothing_else_is_tried_where_any_call_can_be_made(self) -> None:
        for facts in (self.few, self.many._replace(stored="tangents")):
            planned = plan(facts)
            assert planned.choice == planned.of_gaussians
            assert planned.choice.backend == "naive"
            assert not planned.others + planned.others_of_given

    def test_who_was_asked_for_comes_first(self) -> None:
        for facts in (self.few, self.many):
            planned = plan(facts._replace(asked="chunked"))
            assert planned.choice == Choice("chunked", ASKED_FOR)
            assert not planned.others

    def test_who_cannot_store_is_not_asked_where_votes_must_be_stored(self) -> None:
        facts = self.many._replace(asked="native", stored="these are tangents")
        with pytest.raises(ValueError, match=r"'native' cannot .*these are tangents"):
            plan(facts)
        assert plan(facts._replace(asked="naive")).choice.backend == "naive"

    def test_each_device_has_its_own_limit(self, monkeypatch) -> None:
        monkeypatch.setattr("torchcaps.ops.plan._missing", lambda fused: "")
        most = FEW["cuda"]
        for numbers, backend in ((most, "naive"), (most + 1, "triton")):
            facts = Facts("cuda", numbers, 1, vectors=True)
            assert plan(facts).choice.backend == backend
        assert plan(facts).of_gaussians.backend == "triton"  # its lanes hold numbers

    def test_a_device_without_kernels_stores_few_votes(self) -> None:
        facts = self.many._replace(device="mps", numbers=FEW_TILES)
        assert plan(facts).choice == ("naive", "there are no fused kernels for mps")
        assert plan(facts).others == ("chunked",)
        facts = facts._replace(numbers=FEW_TILES + 1)
        assert plan(facts).choice.backend == "chunked"

    @pytest.mark.usefixtures("kernels")
    def test_it_is_made_once_for_votes_and_their_copies(self) -> None:
        new_votes = votes(100)
        new_votes.moments()
        assert new_votes.restricted(leaky=True).plan is new_votes.plan
        with use_backend("chunked"):
            assert new_votes.choose_backend().backend == "native"  # planned already

    def test_it_is_kept_for_other_votes_of_the_same_facts(self) -> None:
        """A layer plans once for each size of batch, not in each call."""
        assert votes(100).plan is votes(100).plan
        assert votes(100).plan is not votes(1).plan


@pytest.mark.usefixtures("kernels")
class TestFewRows:
    """The lanes of the kernels would be empty for Gaussians."""

    @staticmethod
    def votes(
        rows: int = FEW_ROWS, children: int = 128, matrix: tuple[int, ...] = ()
    ) -> Votes:
        return Votes(
            torch.randn(rows, children, *matrix, 8),
            torch.randn(children, 10, 8, 16) / 4,
        )

    @staticmethod
    def gaussian(votes: Votes) -> Gaussian:
        mean = torch.zeros(votes.shape[0], 10, votes.shape[-1])
        return Gaussian(mean, torch.ones_like(mean), torch.zeros(mean.shape[:2]))

    def test_are_stored(self) -> None:
        few = self.votes()
        choice = few.choose_backend(self.gaussian(few))
        assert choice.backend == "naive"
        assert (
            f"{FEW_ROWS} rows of vectors fill few lanes of the native kernels"
            in choice.reason
        )
        assert (
            few.choose_backend().backend
            == few.choose_backend(InnerProduct(self.gaussian(few).mean)).backend
            == "native"
        )

    @pytest.mark.parametrize(
        "sizes",
        [(FEW_ROWS + 1,), (1, STORED_ROWS[1] // 160 + 1), (1, 100), (1, 128, (4,))],
    )
    def test_others_are_not(self, sizes: tuple) -> None:
        many_rows = self.votes(*sizes)
        assert many_rows.choose_backend(self.gaussian(many_rows)).backend == "native"

    def test_a_backend_asked_for_stays(self) -> None:
        few = self.votes()
        with use_backend("native"):
            assert few.choose_backend(self.gaussian(few)).backend == "native"

    def test_give_the_same(self) -> None:
        few = self.votes()
        kernels = Votes(few.children, few.transforms, backend="native")
        actual, expected = (
            votes.moments(self.gaussian(few), scatter=True) for votes in (few, kernels)
        )
        torch.testing.assert_close(tuple(actual), tuple(expected), rtol=1e-4, atol=1e-4)


def test_without_a_compiler_votes_go_tile_by_tile_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    why_not.cache_clear()
    library.library.cache_clear()
    large = votes(FEW_TILES)
    try:
        with pytest.warns(RuntimeWarning, match="slower routing.*no/such/compiler"):
            choice = large.choose_backend()
        assert choice.backend == "chunked"
        assert "/no/such/compiler" in choice.reason
        assert isinstance(large.source, ChunkedVotes)
        assert votes(FEW["cpu"]).choose_backend().backend == "naive"  # few for tiles
        with (
            pytest.raises(RuntimeError, match="/no/such/compiler"),
            use_backend("native"),
        ):
            votes().moments(scatter=True)
    finally:
        why_not.cache_clear()
        library.library.cache_clear()


def test_a_cache_that_cannot_be_written_is_no_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    why_not.cache_clear()
    library.library.cache_clear()
    try:
        with pytest.warns(
            RuntimeWarning, match="slower routing.*could not be compiled with"
        ):
            assert votes(FEW_TILES).choose_backend().backend == "chunked"
    finally:
        why_not.cache_clear()
        library.library.cache_clear()


def test_use_backend_forces_nests_and_restores() -> None:
    with use_backend("chunked"):
        assert chosen() == "chunked"
        with use_backend("naive"):
            assert chosen() == "naive"
            with use_backend(None):
                assert chosen() == "naive"
            with use_backend("auto"):
                assert chosen() == "naive"
        with use_backend("auto"):
            assert chosen() == "naive"
        assert chosen() == "chunked"
    assert chosen() == "naive"


def test_use_backend_restores_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="inside"), use_backend("chunked"):
        raise RuntimeError("inside")
    assert chosen() == "naive"


def test_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCAPS_BACKEND", "chunked")
    assert chosen() == "chunked"
    with use_backend("naive"):
        assert chosen() == "naive"
    monkeypatch.setenv("TORCHCAPS_BACKEND", "")
    assert chosen() == "naive"


def test_backend_of_the_votes_comes_first() -> None:
    with use_backend("naive"):
        assert isinstance(votes(backend="chunked").source, ChunkedVotes)
    assert isinstance(votes(backend="naive").source, NaiveVotes)


def test_unknown_names_list_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"\['auto', 'naive', 'chunked'.*got 'fast'"
    with pytest.raises(ValueError, match=message), use_backend("fast"):
        pass
    with pytest.raises(ValueError, match=message):
        votes(backend="fast").moments()
    monkeypatch.setenv("TORCHCAPS_BACKEND", "fast")
    with pytest.raises(ValueError, match=f"TORCHCAPS_BACKEND must be one of {message}"):
        votes().moments()


def test_restricted_votes_are_not_formed_again() -> None:
    new_votes = votes(backend="naive")
    assert new_votes.restricted(leaky=True).source is new_votes.source
    assert new_votes.restricted(hard=True).competition.hard


@pytest.mark.parametrize(
    ("children", "transforms", "coordinates", "message"),
    [
        ((2, 3), (3, 2, 4, 5), None, r"children must be .*\(2, 3\)"),
        ((2, 3, 1, 4, 1), (3, 2, 4, 5), None, r"children must be .*\(2, 3, 1, 4, 1\)"),
        ((2, 3, 4), (3, 4, 5), None, r"transforms must be .*\(3, 4, 5\)"),
        ((2, 3, 4), (6, 2, 4, 5), None, "transforms are for 6 children.* there are 3"),
        (
            (2, 3, 4),
            (3, 2, 7, 5),
            None,
            "of dimension 7, but children have dimension 4",
        ),
        (
            (2, 3, 6, 4),
            (3, 2, 4, 5),
            (3, 5),
            r"coordinates must be .*\(3, 30\), got shape \(3, 5\)",
        ),
        (
            (2, 3, 6, 4),
            (3, 2, 4, 5),
            (2, 30),
            r"coordinates must be .*\(3, 30\), got shape \(2, 30\)",
        ),
    ],
)
def test_shapes_that_do_not_fit(
    children: tuple[int, ...],
    transforms: tuple[int, ...],
    coordinates: tuple[int, ...] | None,
    message: str,
) -> None:
    extra = None if coordinates is None else torch.zeros(coordinates)
    with pytest.raises(ValueError, match=message):
        Votes(torch.zeros(children), torch.zeros(transforms), extra)


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
def test_weights_of_second_moments_that_do_not_fit(backend: str) -> None:
    new_votes = Votes(torch.ones(2, 3, 4), torch.ones(3, 2, 4, 5), backend=backend)
    for shape in ((1, 3), (2, 1), (3,)):
        with pytest.raises(
            ValueError, match=r"weights must be \(N, G\) = \(2, 3\), got shape"
        ):
            new_votes.gram(torch.ones(shape))


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"triton"}))
@pytest.mark.usefixtures("poisoned")
def test_all_steps_of_an_empty_batch_pass_nothing_on(backend: str) -> None:
    layer = CapsLinear(3, 2, 4, 5, routing=DynamicRouting(bias=True), backend=backend)
    layer(torch.zeros(0, 3, 4)).pose.sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def counted(layer: torch.nn.Module, children: Capsules) -> tuple[int, int]:
    """The operations of a forward pass, and of a backward pass."""
    with FlopCounterMode(display=False) as counter:
        parents = layer(children)
        forward = counter.get_total_flops()
        if layer.routing.trainable:
            (parents.pose.sum() + parents.activation.sum()).backward()
    return forward, counter.get_total_flops() - forward


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("transforms", ["full", "shared"])
@pytest.mark.parametrize("name", list_routings())
def test_operations_are_counted_as_of_stored_votes(name: str, transforms: str) -> None:
    """Kernels counted as 0."""
    routing = create_routing(name)
    layer, stored = (
        CapsLinear(
            7, 5, 3, 3, transforms=transforms, routing=routing, backend=backend
        ).train(routing.trainable)
        for backend in (None, "naive")
    )
    children = Capsules(torch.randn(5, 7, 3, requires_grad=True), torch.rand(5, 7))
    assert counted(layer, children) == counted(stored, children)
    with FlopCounterMode(display=False):
        assert layer.votes(children).choose_backend().backend == "naive"
    assert layer.votes(children).choose_backend().backend != "naive"


@pytest.mark.usefixtures("kernels")
def test_operations_of_a_convolution_are_counted() -> None:
    layer, stored = (
        CapsConv2d(3, 5, (2, 3), (2, 3), 2, routing="em", backend=backend)
        for backend in (None, "naive")
    )
    children = Capsules(torch.randn(2, 4, 3, 3, 2, 3), torch.rand(2, 4, 3, 3))
    forward, backward = counted(layer, children)
    assert (forward, backward) == counted(stored, children)
    rows, windowed, parents = 2 * 3 * 2, 2 * 2 * 3, 5
    assert forward > 2 * rows * windowed * parents * 2 * 3 * 3  # the votes alone
    assert backward > forward


@pytest.mark.usefixtures("kernels")
def test_operations_of_kernels_that_were_asked_for_are_not_counted_as_0() -> None:
    with (
        FlopCounterMode(display=False),
        pytest.raises(ValueError, match="'native' cannot do this: FlopCounterMode"),
    ):
        CapsLinear(7, 5, 3, 3, backend="native")(torch.randn(5, 7, 3))
