"""Advice on what to install if a module is missing."""

EXTRAS = {
    "art": "recipes",
    "datasets": "datasets",
    "filelock": "data",
    "huggingface_hub": "hub",
    "jsonargparse": "train",
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
    "yaml": "train",
}
"""The extra of this package that installs a module, by the name for ``import``."""


def advice(error: ModuleNotFoundError) -> str | None:
    """A line that says which module is missing and which extra installs it; None if no extra does."""
    name = (error.name or "").partition(".")[0]
    if "pip install" in str(error):
        return str(error)
    return f"{name} is not installed: pip install 'torchcaps[{EXTRAS[name]}]'" if name in EXTRAS else None
