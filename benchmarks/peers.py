"""What others compute for the same block: each peer is a function of target logits, draft ids and draft logits.

None of them takes coins: they draw from torch's generator. Where a peer computes less than `verify`, its docstring says
so, and it is compared with `verify(compute_tv=False)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

Call = Callable[[Tensor, Tensor, Tensor], Any]


def eager(target: Tensor, ids: Tensor, draft: Tensor) -> tuple[Tensor, ...]:
    """All that `verify` returns, in torch: two softmaxes, TV, accept test, rewards, residual, multinomial, tokens."""
    p, q = torch.softmax(target, -1, dtype=torch.float32), torch.softmax(draft, -1, dtype=torch.float32)
    residual = (p[:, :-1] - q).clamp_(min=0.0)
    tv = residual.sum(-1)
    index = ids.unsqueeze(-1)
    ratio = p[:, :-1].gather(-1, index).squeeze(-1) / q.gather(-1, index).squeeze(-1)
    is_accepted = torch.rand_like(ratio) < ratio
    num_accepted = is_accepted.long().cumprod(-1).sum(-1)
    accept = ratio.clamp(max=1.0)
    reach = torch.nn.functional.pad(accept, (1, 0), value=1.0).cumprod(-1)[:, :-1]
    expected, divergence = (reach * (1 - tv)).sum(-1), (1 - tv).mean(-1)
    row = torch.arange(len(ids), device=ids.device)
    width = ids.shape[1]
    recovered = residual[row, num_accepted.clamp(max=width - 1)]
    token = draw(torch.where((num_accepted == width).unsqueeze(-1), p[:, -1], recovered))
    position = torch.arange(width + 1, device=ids.device)
    tokens = torch.nn.functional.pad(ids, (0, 1)).masked_fill(position >= num_accepted.unsqueeze(-1), -1)
    tokens = tokens.scatter(-1, num_accepted.unsqueeze(-1), token)
    return tokens, num_accepted, tv, accept, expected, divergence


def draw(law: Tensor) -> Tensor:
    """`torch.multinomial`; on a GPU without its check, which waits for the device and so cannot be captured."""
    if law.is_cuda:
        return (law / torch.empty_like(law).exponential_()).argmax(-1, keepdim=True)
    return torch.multinomial(law, 1)


def transformers_sampling(target: Tensor, ids: Tensor, draft: Tensor) -> Any:
    """transformers' `_speculative_sampling`, for one request: no TV, and the host reads the count."""
    from transformers.generation.utils import _speculative_sampling

    return _speculative_sampling(ids, draft, ids.shape[1], target)


def flashspec_step(target: Tensor, ids: Tensor, draft: Tensor) -> Tensor:
    """flashspec's `rejection_step` on log-softmaxes: accepted count and next token, no TV."""
    from flashspec.sampling.rejection import rejection_step

    step: Tensor = rejection_step(ids, torch.log_softmax(draft, -1), torch.log_softmax(target, -1))
    return step


def flashinfer_chain(target: Tensor, ids: Tensor, draft: Tensor) -> tuple[Any, Tensor]:
    """FlashInfer's softmax and chain_speculative_sampling, and TV in torch from the same probabilities."""
    from flashinfer.sampling import chain_speculative_sampling, softmax

    p, q = (softmax(x.flatten(0, 1)).view(x.shape) for x in (target, draft))
    tv = (p[:, :-1] - q).clamp_(min=0.0).sum(-1)
    return chain_speculative_sampling(q, ids.int(), p), tv


@dataclass(frozen=True)
class Peer:
    """A name in the table.

    Attributes:
        call: computes one block.
        has_tv: whether it computes the total variation distance.
        is_for_one: takes a single request only.
        needs_gpu: runs on a GPU only.
        is_capturable: can be part of a CUDA graph; what waits for the device cannot.
        package: what must be importable.
    """

    name: str
    call: Call
    has_tv: bool
    is_for_one: bool = False
    needs_gpu: bool = False
    is_capturable: bool = True
    package: str = "torch"

    def obstacle(self, batch_size: int, device: str) -> str | None:
        """Why it cannot run here, or None."""
        if find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.is_for_one and batch_size > 1:
            return "takes one request"
        return "needs a GPU" if self.needs_gpu and device == "cpu" else None


PEERS = {
    peer.name: peer
    for peer in (
        Peer("torch eager", eager, has_tv=True),
        Peer("torch.compile", torch.compile(eager, dynamic=False), has_tv=True),
        Peer(
            "transformers",
            transformers_sampling,
            has_tv=False,
            is_for_one=True,
            is_capturable=False,
            package="transformers",
        ),
        Peer("flashspec", flashspec_step, has_tv=False, is_capturable=False, package="flashspec"),
        Peer("flashinfer + TV", flashinfer_chain, has_tv=True, needs_gpu=True, package="flashinfer"),
    )
}
