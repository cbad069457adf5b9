"""The only owner of CUDA-graph capture."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor


class Graphs:
    """Runs functions on static tensors: on a GPU each is captured when it is first needed and replayed from then on.

    All graphs share one memory pool, and none is destroyed while another lives. On a CPU a function simply runs.

    Args:
        device: where the tensors lie.
        moving: state that functions advance; a first run, which warms up libraries and compiles kernels, is taken back.
    """

    def __init__(self, device: torch.device, moving: Sequence[Tensor]) -> None:
        self._moving, self._is_captured = tuple(moving), device.type == "cuda"
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Run a function, or replay what it did under the same key.

        Args:
            key: says all that the function's shapes and Python values depend on.
            function: reads and writes tensors at fixed addresses, and asks the device for nothing.
        """
        if not self._is_captured:
            function()
            return
        if key not in self._graphs:
            self._graphs[key] = self._capture(function)
        self._graphs[key].replay()

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        before = [tensor.clone() for tensor in self._moving]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()
            for tensor, value in zip(self._moving, before, strict=True):
                tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            function()
        return graph

    def __len__(self) -> int:
        return len(self._graphs)
