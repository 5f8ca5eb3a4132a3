"""Speed and memory, measured. ``python -m benchmarks`` prints all tables."""
