"""Speed and memory, measured: ``python -m benchmarks NAME``. The measuring is in ``torchcaps.bench``."""
