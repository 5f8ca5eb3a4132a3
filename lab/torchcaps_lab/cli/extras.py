"""Advice on what to install if a module is missing."""

EXTRAS = {
    "datasets": "datasets",
    "kornia": "augment",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "aeon": "series",
    "skimage": "poses",
    "soundfile": "series",
    "starlette": "explore",
    "tokenizers": "text",
    "uvicorn": "explore",
}
"""The extra of this package that installs a module, by the name for ``import``."""


def advice(error: ModuleNotFoundError) -> str | None:
    """A line that says which module is missing and which extra has it; None if no extra
    installs it.
    """
    name = (error.name or "").partition(".")[0]
    if "pip install" in str(error):
        return str(error)
    if name in EXTRAS:
        return f"{name} is not installed: pip install 'torchcaps-lab[{EXTRAS[name]}]'"
    return None
