"""Speed and memory, measured beside what the hardware could do: ``torchcaps bench``."""
