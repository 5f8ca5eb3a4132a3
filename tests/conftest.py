import os

import torch

torch.set_num_threads(1)  # with tensors this small, threads only wait for each other
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
