"""The operators of the fused backends, and whole networks, under torch.compile,
torch.export and autocast.
"""

import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchcaps as tc
from tests.small_networks import SMALLER, shipped
from torchcaps import create_model, list_routings
from torchcaps.losses import SpreadLoss
from torchcaps.models import ImageClassifier
from torchcaps.ops import use_backend

BACKENDS = {"self_routing_resnet20": "chunked"}
"""Where native has no kernel."""

SLOW = pytest.mark.slow
THOROUGH = pytest.mark.thorough
TWICE = (
    "byerly_maps",
    "capsnet_small",
    "capsnet_small_cnn",
    "efficient_capsnet_multimnist",
)
TWICE += ("matrixcapsnet_cifar10", "matrixcapsnet_paper", "matrixcapsnet_small")
"""Networks of whose layers all are among those of another name."""
COMPILED = ("capsnet_digits", "sharedcapsnet")
"""Networks that are compiled in each thorough run: with :class:`Capsuled`, they have
the kinds of layers.
"""
EXPORTED = (*COMPILED, "efficient_capsnet", "self_routing_resnet20")


def models(slow: Callable[[str], bool]) -> pytest.MarkDecorator:
    """All networks: one always, the slow ones when asked for, others in each thorough
    run.
    """
    names = [name for name in shipped("images") if name != "capsnet_digits"]
    remaining = [
        pytest.param(name, marks=SLOW if slow(name) else THOROUGH) for name in names
    ]
    return pytest.mark.parametrize("name", ["capsnet_digits", *remaining])


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch.compiler.reset()


def network(name: str) -> tuple[ImageClassifier, Tensor, Tensor]:
    """A small network of that name in float64, images and labels."""
    torch.manual_seed(0)
    model = create_model(name, **SMALLER.get(name, {})).double()
    return (
        model,
        torch.rand(2, *model.image_shape, dtype=torch.float64),
        torch.tensor([0, 1]),
    )


def gradients(model: nn.Module, activation: Tensor) -> list[Tensor]:
    parameters = [
        parameter for parameter in model.parameters() if parameter.requires_grad
    ]
    return list(
        torch.autograd.grad(
            activation.square().sum(), parameters, materialize_grads=True
        )
    )


@pytest.mark.thorough
@models(lambda name: name not in COMPILED)
def test_compiles_in_one_piece(name: str) -> None:
    model, *inputs = network(name)
    with use_backend(BACKENDS.get(name, "native")):
        check_compiled(model, *inputs)


@pytest.mark.thorough
def test_routed_convolutions_compile_in_one_piece() -> None:
    """Those of matrixcapsnet, of which there are more."""
    torch.manual_seed(0)
    with use_backend("native"):
        check_compiled(
            Capsuled("element").double(), torch.rand(2, 1, 9, 9, dtype=torch.float64)
        )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["slots", "slot_mixture"])
def test_routings_to_slots_compile_in_one_piece(name: str) -> None:
    """In evaluation, where they draw nothing."""
    torch.manual_seed(0)
    routing = tc.create_routing(name)
    layer = tc.CapsLinear(None, 4, 8, 8, transforms="subspace", routing=routing)
    layer = layer.double().eval()
    children = torch.randn(2, 30, 8, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(children), layer(children))


def check_compiled(model: nn.Module, *inputs: Tensor) -> None:
    torch.manual_seed(1)  # of the slots that networks draw in a training
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(
        *inputs
    ).activation
    torch.manual_seed(1)
    expected = model(*inputs).activation
    torch.testing.assert_close(compiled, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        gradients(model, compiled), gradients(model, expected), rtol=1e-7, atol=1e-10
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["em", "homogeneous"])
def test_compiled_layers_take_other_batches(name: str) -> None:
    torch.manual_seed(0)
    layer = tc.CapsLinear(300, 3, 4, 4, routing=tc.create_routing(name))
    norm = tc.layers.PoseNorm(3, 4)

    def normalised(poses: Tensor) -> Tensor:
        return norm(layer(poses).pose)

    compiled = torch.compile(normalised, fullgraph=True, backend="eager")
    for batch in (3, 5, 2):
        poses = torch.randn(batch, 300, 4)
        torch.testing.assert_close(compiled(poses), normalised(poses))


@pytest.mark.thorough
def test_compiled_layers_take_maps_of_other_sizes() -> None:
    torch.manual_seed(0)
    layer = tc.ClassCaps(4, 3, 8, 8, routing="mean", vote_bias=True)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for sizes in ((2, 3, 3), (2, 4, 5), (3, 6, 2)):
        children = tc.Capsules(torch.randn(*sizes, 4, 8), torch.rand(*sizes, 4))
        torch.testing.assert_close(compiled(children), layer(children))


@pytest.mark.thorough
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, on its way to the code generator
def test_inductor() -> None:
    model, images, labels = network("capsnet_digits")
    with use_backend("native"):
        compiled = torch.compile(model, fullgraph=True)(images, labels).activation
        expected = model(images, labels).activation
    torch.testing.assert_close(compiled, expected, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(
        gradients(model, compiled), gradients(model, expected), rtol=1e-5, atol=1e-8
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings(
    "ignore:The given buffer is not writable"
)  # how PyTorch 2.10 loads a program
@models(lambda name: name not in EXPORTED)
def test_exports_with_any_batch_and_saves(name: str) -> None:
    model, images, _ = network(name)
    with use_backend(BACKENDS.get(name, "native")):
        check_exported(model.eval(), images)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_routed_convolutions_export_with_any_batch_and_save() -> None:
    """Those of matrixcapsnet, of which there are more."""
    torch.manual_seed(0)
    with use_backend("native"):
        check_exported(
            Capsuled("element").double().eval(),
            torch.rand(2, 1, 9, 9, dtype=torch.float64),
        )


def check_exported(model: nn.Module, images: Tensor) -> None:
    again = saved(
        torch.export.export(
            model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},)
        )
    )
    for batch in (images, torch.rand(5, *images.shape[1:], dtype=torch.float64)):
        expected = model(batch)
        actual = again.module()(batch)
        assert type(actual) is type(expected)
        torch.testing.assert_close(
            actual.activation, expected.activation, rtol=1e-9, atol=1e-12
        )


WITHOUT_KERNELS = ("degree_centrality", "self_routing", "sparse_attention", "spectral")
"""Routings with a similarity, given logits, a map and second moments that the kernels
have not got.
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        name
        if name == "spectral"
        else pytest.param(name, marks=THOROUGH if name in WITHOUT_KERNELS else SLOW)
        for name in list_routings()
    ],
)
def test_every_routing_exports_with_any_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are no kernels, and too many votes to store them otherwise."""
    monkeypatch.setattr("torchcaps.ops.plan.FEW", {"cpu": 0})
    monkeypatch.setattr("torchcaps.ops.plan.FEW_TILES", 0)
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 100)
    torch.manual_seed(0)
    layer = tc.CapsLinear(5, 3, 4, 4, routing=tc.create_routing(name)).double().eval()
    batch = {0: torch.export.Dim("batch")}
    children = torch.randn(3, 5, 4, dtype=torch.float64)
    program = torch.export.export(
        layer, (children,), dynamic_shapes=(batch,), strict=False
    )
    larger = torch.randn(7, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(program.module()(larger), layer(larger))


@pytest.mark.thorough
@pytest.mark.parametrize("vote_bias", [False, True])
@pytest.mark.parametrize("evidence", [False, True])
def test_class_layers_export_with_any_size_of_the_map(
    evidence: bool, vote_bias: bool
) -> None:
    torch.manual_seed(0)
    routing = tc.create_routing("em", evidence=evidence)
    layer = tc.ClassCaps(4, 3, 8, 8, routing=routing, vote_bias=vote_bias).eval()

    def children(*sizes: int) -> tc.Capsules:
        return tc.Capsules(torch.randn(*sizes, 4, 8), torch.rand(*sizes, 4))

    of_any_size = dict.fromkeys(range(3), torch.export.Dim.AUTO)
    sizes = (tc.Capsules(of_any_size, of_any_size),)
    program = torch.export.export(layer, (children(3, 5, 6),), dynamic_shapes=sizes)
    others = children(4, 7, 4)
    torch.testing.assert_close(program.module()(others).pose, layer(others).pose)


@pytest.mark.thorough
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's own
@pytest.mark.parametrize(
    "name",
    [
        "mean",
        *(pytest.param(name, marks=SLOW) for name in ("euclidean", "self_routing")),
    ],
)
def test_a_strict_export_leaves_the_batch_open(name: str) -> None:
    torch.manual_seed(0)
    layer = tc.CapsLinear(6, 3, 4, 4, routing=tc.create_routing(name)).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(
        layer, (torch.randn(4, 6, 4),), dynamic_shapes=(batch,), strict=True
    )
    larger = torch.randn(7, 6, 4)
    torch.testing.assert_close(program.module()(larger), layer(larger))


class GivenLogits(nn.Module):
    """Moments under given logits: of votes with coordinates, with a scatter, or where
    all windows compete.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.windows = tc.ops.Windows(
            (3,),
            (2,),
            (1,),
            (0,),
        )

    def forward(
        self, children: Tensor, transforms: Tensor, coordinates: Tensor, logits: Tensor
    ) -> Tensor:
        wide = tc.ops.PARENTS
        if self.what == "windows":
            wide = tc.ops.GridWide(windows=self.windows, types=2)
        sites = self.windows.children(2, children.device)
        votes = tc.Votes(
            children, transforms, coordinates, competition=wide, sites=sites
        )
        moments = votes.moments(tc.ops.Given(logits), scatter=self.what == "scatter")
        return moments.sum if moments.scatter is None else moments.scatter


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["coordinates", "scatter", "windows"])
def test_given_logits_export_with_any_batch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchcaps.ops.plan.FEW", {"cpu": 0})
    monkeypatch.setattr("torchcaps.ops.plan.FEW_TILES", 0)
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 100)
    torch.manual_seed(0)
    layer = GivenLogits(kind)
    weights = (torch.randn(4, 3, 2, 5), torch.randn(4, 5), torch.randn(4, 3))
    shapes = ({0: torch.export.Dim("batch")}, None, None, None)
    program = torch.export.export(
        layer, (torch.randn(3, 6, 2), *weights), dynamic_shapes=shapes
    )
    larger = torch.randn(7, 6, 2)
    with use_backend("naive"):
        expected = layer(larger, *weights)
    torch.testing.assert_close(program.module()(larger, *weights), expected)


def test_programs_of_steps_without_gradients_are_read_again() -> None:
    torch.manual_seed(0)
    routing = tc.create_routing("em", gradient="last")
    layer = tc.CapsLinear(5, 3, 4, 4, routing=routing).eval()
    children = torch.randn(3, 5, 4)
    again = saved(torch.export.export(layer, (children,))).module()
    poses = [children.clone().requires_grad_() for _ in range(2)]
    actual, expected = again(poses[0]).pose, layer(poses[1]).pose
    torch.testing.assert_close(actual, expected)
    actual.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(poses[0].grad, poses[1].grad)


def saved(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program, written and read again."""
    file = BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


OPENED = (
    "import sys, torch, torchcaps; prediction = "
    "torch.export.load(sys.argv[1]).module()(torch.load(sys.argv[2])); "
    "assert type(prediction) is torchcaps.models.Prediction; "
    "torch.save(prediction.activation, sys.argv[2])"
)


@THOROUGH
def test_import_of_the_package_is_all_that_a_saved_program_needs(
    tmp_path: Path,
) -> None:
    """It names operators and the result of networks."""
    program = tmp_path / "program.pt2"
    tensors = tmp_path / "tensors.pt"
    model, images, _ = network("capsnet_digits")
    model.class_caps.backend = "native"
    torch.export.save(torch.export.export(model.eval(), (images,)), program)
    torch.save(images, tensors)
    subprocess.run([sys.executable, "-c", OPENED, program, tensors], check=True)
    torch.testing.assert_close(torch.load(tensors), model(images).activation)


class Capsuled(nn.Module):
    """Convolutional capsules that compete over the whole image, and class capsules, in
    two steps.
    """

    def __init__(self, pose_norm: Any = None) -> None:
        super().__init__()
        em = tc.create_routing("em", steps=2, sharpness="mean")
        self.primary = tc.PrimaryCaps(1, 2, (2, 2), 3, activation="learned")
        self.convolution = tc.CapsConv2d(
            2, 2, (2, 2), (2, 2), 2, routing=em, pose_norm=pose_norm
        )
        self.classes = tc.ClassCaps(
            2, 3, (2, 2), (2, 2), routing=tc.create_routing("euclidean", steps=2)
        )

    def forward(self, images: Tensor) -> tc.Capsules:
        return self.classes(self.convolution(self.primary(images)))


class TestOnnx:
    @pytest.fixture(autouse=True)
    def onnx_is_there(self) -> None:
        for name in ("onnx", "onnxscript", "onnxruntime"):  # the extra `export`
            pytest.importorskip(name)

    @SLOW
    @pytest.mark.filterwarnings("ignore")  # the exporter's own
    def test_the_same_answers_for_any_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import onnxruntime

        monkeypatch.setattr("torchcaps.ops.plan.FEW", {"cpu": 0})  # native otherwise
        torch.manual_seed(0)
        model = Capsuled().eval()
        images = torch.rand(4, 1, 9, 9)
        batch = {0: torch.export.Dim("batch")}
        program = torch.onnx.export(
            model, (images[:2],), dynamo=True, dynamic_shapes=(batch,), verbose=False
        )
        program.save(tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        output = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        for first, second in zip(output, model(images), strict=True):
            torch.testing.assert_close(
                torch.from_numpy(first), second, rtol=1e-4, atol=1e-5
            )

    @pytest.mark.thorough
    @pytest.mark.filterwarnings("ignore")
    def test_the_older_exporter_says_which_one_works(self, tmp_path: Path) -> None:
        """It named an operator of this package, after pages of its graph."""
        with pytest.raises(RuntimeError, match=r"use torch.onnx.export.*dynamo=True"):
            torch.onnx.export(
                Capsuled().eval(),
                (torch.rand(2, 1, 9, 9),),
                tmp_path / "model.onnx",
                dynamo=False,
            )

    @pytest.mark.thorough
    @pytest.mark.filterwarnings("ignore")
    def test_a_backend_asked_for_names_the_way_out(self) -> None:
        with (
            use_backend("native"),
            pytest.raises(Exception, match=r"ONNX file.*backend='naive'"),
        ):
            torch.onnx.export(
                Capsuled().eval(), (torch.rand(2, 1, 9, 9),), dynamo=True, verbose=False
            )


@models(lambda name: name in TWICE)
@pytest.mark.parametrize("backend", ["naive", "native"])
def test_autocast(name: str, backend: str) -> None:
    """Routing stays in float32, and so does the loss; as close to float32 as steps of
    EM on bf16 features can be.
    """
    torch.manual_seed(0)
    model = create_model(name, **SMALLER.get(name, {}))
    images = torch.rand(4, *model.image_shape)
    labels = torch.arange(4) % model.classes
    backend = BACKENDS.get(name, backend) if backend == "native" else backend
    with use_backend(backend), torch.autocast("cpu", torch.bfloat16):
        activation = model(images, labels).activation
        loss = SpreadLoss()(activation, labels)
    assert loss.dtype == torch.float32
    grads = gradients(model, activation)
    assert all(gradient.isfinite().all() for gradient in grads)
    assert (activation.float() - model(images, labels).activation).abs().mean() < 0.05


def call(similarity: str, sites: bool) -> list[Any]:
    """Arguments of an operator up to the name of the backend."""
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.rand(
            shape, generator=generator, dtype=torch.float64
        ).requires_grad_()

    N = 2
    G = 5
    J = 3
    M = 2
    P = 3
    D = 2
    places = torch.tensor([[0, 1, 4], [3, 1, 2]], dtype=torch.int32) if sites else None
    B, I = (N * 2, 3) if sites else (N, G)
    fields = {"uniform": [], "inner": [leaf(B, J, M * D)]}
    fields["gaussian"] = [leaf(B, J, M * D), leaf(B, J, M * D), leaf(B, J)]
    return [
        leaf(N, G, M, P),
        leaf(I, J, P, D),
        leaf(I, M * D),
        leaf(N, G),
        None,
        places,
        fields[similarity],
        "native",
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("similarity", "sites"),
    [
        ("inner", False),
        ("gaussian", True),
        *(
            pytest.param(*rest, marks=SLOW)
            for rest in (
                ("uniform", False),
                ("uniform", True),
                ("inner", True),
                ("gaussian", False),
            )
        ),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # of PyTorch's own check, from 2.14 on
def test_operators_keep_the_rules_of_torch_library(
    similarity: str, sites: bool
) -> None:
    arguments = call(similarity, sites)
    for scatter in (False, True):
        torch.library.opcheck(
            torch.ops.torchcaps.moments, (*arguments, True, False, scatter)
        )
    with torch.no_grad():
        mass, total, second, following = torch.ops.torchcaps.moments(
            *arguments, True, False, True
        )
    plain = [x.detach() if isinstance(x, Tensor) else x for x in arguments]
    plain[6] = [x.detach() for x in plain[6]]
    upstream = (total / mass[..., None], mass, total, second, following)
    torch.library.opcheck(
        torch.ops.torchcaps.moments_backward, (*plain, True, False, *upstream)
    )
    if similarity == "uniform":
        return
    for reduced in (False, True):
        scores = torch.ops.torchcaps.scores(*plain, False, reduced)
        torch.library.opcheck(torch.ops.torchcaps.scores, (*arguments, False, reduced))
        torch.library.opcheck(
            torch.ops.torchcaps.scores_backward,
            (*plain, False, reduced, scores, scores),
        )
