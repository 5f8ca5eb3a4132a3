"""Advice on what to install if a module is missing."""

EXTRAS = {
    "datasets": "datasets",
    "filelock": "data",
    "huggingface_hub": "hub",
    "docstring_parser": "predict",
    "kornia": "augment",
    "lightning": "train",
    "matplotlib": "train",
    "numpy": "data",
    "PIL": "data",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "pooch": "data",
    "rich": "train",
    "safetensors": "hub",
    "scipy": "data",
    "skimage": "poses",
    "sklearn": "data",
    "starlette": "explore",
    "tensorboard": "train",
    "timm": "timm",
    "tokenizers": "text",
    "torchmetrics": "train",
    "urllib3": "data",
    "uvicorn": "explore",
    "yaml": "predict",
}
"""The extra of this package that installs a module, by the name for ``import``."""

NEEDED = {
    "convert": "convert",
    "explain": "train",
    "explore": "explore",
    "export": "export",
    "train": "train",
    "transfer": "train",
}
"""The extra that a command needs, where it is not ``predict``; each brings all that ``predict`` does."""


def advice(error: ModuleNotFoundError, command: str) -> str | None:
    """A line that says which module is missing and which extra a command needs; None if no extra installs it."""
    name = (error.name or "").partition(".")[0]
    if "pip install" in str(error):
        return str(error)
    if name not in EXTRAS:
        return None
    extra = EXTRAS[name]
    if extra in ("data", "hub", "predict"):
        extra = NEEDED.get(command, "predict")
    return f"{name} is not installed: pip install 'torchcaps[{extra}]'"
