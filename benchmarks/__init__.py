"""Speed and memory beside what the hardware could do, and behaviour under faults:
``python -m benchmarks``.
"""
