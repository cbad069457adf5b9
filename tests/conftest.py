"""What holds for every test.

Without a GPU, Triton kernels run in Triton's interpreter: to be said before anything imports Triton. With several
processes each has one thread.
"""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # a process on each core
    torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["tie_band"]
