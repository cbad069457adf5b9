"""Memory of key-value caches: slots, where models compute, pages, where parked caches wait, and who has a slot."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from metasd.core import MetaSDError, Stopwatch, refuse
from metasd_kernels import activate, park

PAGE_SIZE = 16
"""Tokens in a page: rows long enough for a copy at full speed, and little waste behind the last token."""

DEFAULT_CAPACITY = 2048  # tokens, where no pool gives a slot


@dataclass(frozen=True)
class CacheShape:
    """What a token of a cache is made of."""

    num_layers: int
    num_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def num_planes(self) -> int:
        """Keys and values of each head of each layer."""
        return self.num_layers * 2 * self.num_heads

    @property
    def bytes_per_token(self) -> int:
        return self.num_planes * self.head_dim * torch.empty((), dtype=self.dtype).element_size()


def _zeros(num_bytes: int, device: torch.device) -> Tensor:
    """Memory that is not NaN: what a mask hides still goes into a sum, times 0. On a CPU it is free until used."""
    with torch.inference_mode(False):  # a tensor made in inference mode cannot be written outside of it
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)


class Slot:
    """Room for one cache of `capacity` tokens at addresses that never change.

    Args:
        shape: of the cache.
        capacity: in tokens.
        memory: bytes to lie in, shared with other slots of which one is used at a time; None: bytes of its own.

    Attributes:
        layers: keys and values of each, `[1, heads, C, head_dim]`.
        planes: the same memory, `[P, C, head_dim]`, as `metasd_kernels.park` takes it.
    """

    def __init__(self, shape: CacheShape, capacity: int, memory: Tensor | None = None) -> None:
        sizes = (shape.num_layers, 2, shape.num_heads, capacity, shape.head_dim)
        self.shape, self.capacity = shape, capacity
        if memory is None:
            memory = _zeros(shape.bytes_per_token * capacity, shape.device)
        with torch.inference_mode(False):
            storage = memory[: shape.bytes_per_token * capacity].view(shape.dtype).view(sizes)
            self.layers = [(layer[0].unsqueeze(0), layer[1].unsqueeze(0)) for layer in storage]
            self.planes = storage.view(shape.num_planes, capacity, shape.head_dim)

    def memory_bytes(self) -> int:
        return self.planes.numel() * self.planes.element_size()


class SlotCache:
    """A cache of one sequence that lies in a slot: what a model's cache and a head's have in common.

    Attributes:
        shape: of a token.
        num_tokens: how many are there. Forgetting the last ones writes no data.
        slot: where it lies; one of its own, made at the first use, unless it was given one.
        owner: who gave it.
        forward: on while its model runs.
    """

    def __init__(self, shape: CacheShape, name: str) -> None:
        self.shape, self.name = shape, name
        self.num_tokens = 0
        self.slot: Slot | None = None
        self.owner: object = None
        self.forward = Stopwatch()
        self.num_parked = 0
        """So many of the first tokens lie in pages just as they are here."""

    def move(self, slot: Slot | None, owner: object) -> None:
        """Forget everything, and lie somewhere else from now on."""
        self.slot, self.owner = slot, owner
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.num_tokens = self.num_parked = 0

    def rewind(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens; their memory is written over by the next ones."""
        if num_tokens > 0:
            self.num_tokens -= num_tokens
            self.num_parked = min(self.num_parked, self.num_tokens)

    def ready(self, num_new: int) -> Slot:
        """The slot, with room for so many tokens more.

        Raises:
            MetaSDError: they do not fit.
        """
        if self.slot is None:
            self.slot = Slot(self.shape, DEFAULT_CAPACITY)
        if self.num_tokens + num_new > self.slot.capacity:
            raise MetaSDError(
                f"{self.name}: its cache has room for {self.slot.capacity} tokens, and {self.num_tokens + num_new} are "
                "needed; raise max_context"
            )
        return self.slot

    def memory_bytes(self) -> int:
        """Bytes of the slot."""
        return 0 if self.slot is None else self.slot.memory_bytes()


@dataclass
class _Parked:
    """A cache that has given up its slot."""

    page_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    fingerprint: bytes = b""


class _Pages:
    """Pages of caches of one shape, on the host; pinned where the slots are on a GPU."""

    def __init__(self, shape: CacheShape, page_size: int) -> None:
        self._sizes = (shape.num_planes, page_size, shape.head_dim)
        self._dtype, self._is_pinned = shape.dtype, shape.device.type == "cuda"
        self.tensor = self._make(0)
        self._free: list[int] = []

    def _make(self, count: int) -> Tensor:
        with torch.inference_mode(False):
            return torch.empty((count, *self._sizes), dtype=self._dtype, pin_memory=self._is_pinned and count > 0)

    def take(self, count: int) -> list[int]:
        """Ids of so many pages; there are more when they run out, twice as many each time."""
        if len(self._free) < count:
            old = self.tensor
            self.tensor = self._make(max(2 * len(old), len(old) + count, 8))
            self.tensor[: len(old)] = old
            self._free += range(len(old), len(self.tensor))
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give(self, page_ids: Sequence[int]) -> None:
        self._free += page_ids


class Residency:
    """Who lies in a slot, and who waits in pages.

    With room for all nobody ever moves. Otherwise the largest caches get a slot of their own as far as the budget
    reaches; the others share these, each always the same one: its addresses never change. A cache that gives way is
    parked: only its valid tokens are copied, and of these only what its pages do not hold already.

    Args:
        caches: by arm.
        capacity: the most tokens of a sequence, its draft among them.
        budget: bytes for all slots together; None: as many as they take.
        page_size: tokens in a page.

    Raises:
        UsageError: the budget is too small for one of them alone.
    """

    def __init__(
        self, caches: Mapping[str, SlotCache], capacity: int, budget: int | None = None, page_size: int = PAGE_SIZE
    ) -> None:
        self._caches, self._capacity, self._page_size = dict(caches), capacity, page_size
        self._home: dict[str, int] = {}  # the region that an arm shares
        self._sizes: list[int] = []  # of regions, in bytes
        self._regions: dict[int, Tensor] = {}
        self._tenant: dict[int, str] = {}
        self._slots: dict[str, Slot] = {}
        self._pages: dict[CacheShape, _Pages] = {}
        self._parked: dict[str, _Parked] = {}
        self.num_bytes_copied = 0
        needed = {name: cache.shape.bytes_per_token * capacity for name, cache in self._caches.items()}
        if budget is not None and sum(needed.values()) > budget:
            order = sorted(needed, key=lambda name: needed[name], reverse=True)
            if needed[order[0]] > budget:
                expected = f"at least {needed[order[0]]} bytes, for {order[0]} alone with {capacity} tokens"
                raise refuse("kv_budget", expected, budget)
            self._place(order, needed, budget)

    def _place(self, order: list[str], needed: Mapping[str, int], budget: int) -> None:
        """A region for each as long as the budget lasts; the others move in where the fewest live."""
        sizes, tenants = self._sizes, list[int]()
        for name in order:
            if sum(sizes) + needed[name] <= budget:
                self._home[name] = len(sizes)
                sizes.append(needed[name])
                tenants.append(1)
        for name in order:
            if name not in self._home:
                fitting = [index for index, size in enumerate(sizes) if size >= needed[name]]
                home = min(fitting, key=lambda index: (tenants[index], sizes[index]))
                self._home[name] = home
                tenants[home] += 1

    def _slot_of(self, name: str) -> Slot:
        if name not in self._slots:
            shape, home = self._caches[name].shape, self._home.get(name)
            if home is not None and home not in self._regions:
                self._regions[home] = _zeros(self._sizes[home], shape.device)
            self._slots[name] = Slot(shape, self._capacity, None if home is None else self._regions[home])
        return self._slots[name]

    def reset(self) -> None:
        """A new sequence: what is parked is of no use any more. Pools may share drafters, and take turns."""
        for name, parked in self._parked.items():
            self._pages_of(name).give(parked.page_ids)
        self._parked.clear()
        self._tenant.clear()
        for name, cache in self._caches.items():
            if cache.owner is self:
                cache.clear()
            else:
                cache.move(self._slot_of(name), self)

    def bring(self, name: str, fingerprint: Callable[[int], bytes]) -> int:
        """Make sure that an arm's cache lies in its slot.

        Args:
            name: the arm; one without a cache needs nothing.
            fingerprint: of the first n tokens of the sequence.

        Returns:
            bytes that were copied.

        Raises:
            MetaSDError: the cache that was parked is of another context.
        """
        home = self._home.get(name)
        if home is None or self._tenant.get(home) == name:
            return 0
        num_bytes = 0
        if home in self._tenant:
            num_bytes += self._park(self._tenant[home], fingerprint)
        self._tenant[home] = name
        num_bytes += self._activate(name, fingerprint)
        self.num_bytes_copied += num_bytes
        return num_bytes

    def _park(self, name: str, fingerprint: Callable[[int], bytes]) -> int:
        cache, parked = self._caches[name], self._parked.setdefault(name, _Parked())
        assert cache.slot is not None
        pages, count = self._pages_of(name), -(-cache.num_tokens // self._page_size)
        parked.page_ids += pages.take(max(count - len(parked.page_ids), 0))
        park(cache.slot.planes, pages.tensor, parked.page_ids, cache.num_parked, cache.num_tokens)
        num_copied = cache.num_tokens - cache.num_parked
        parked.num_tokens = cache.num_parked = cache.num_tokens
        parked.fingerprint = fingerprint(cache.num_tokens)
        return num_copied * cache.shape.bytes_per_token

    def _activate(self, name: str, fingerprint: Callable[[int], bytes]) -> int:
        cache, parked = self._caches[name], self._parked.get(name)
        if parked is None:
            if cache.num_tokens:
                raise MetaSDError(f"{name}: it has filled its cache without being active")
            return 0
        if fingerprint(parked.num_tokens) != parked.fingerprint or parked.num_tokens != cache.num_tokens:
            raise MetaSDError(f"{name}: the cache that was parked is of another context")
        assert cache.slot is not None
        activate(cache.slot.planes, self._pages_of(name).tensor, parked.page_ids, 0, parked.num_tokens)
        return parked.num_tokens * cache.shape.bytes_per_token

    def _pages_of(self, name: str) -> _Pages:
        shape = self._caches[name].shape
        if shape not in self._pages:
            self._pages[shape] = _Pages(shape, self._page_size)
        return self._pages[shape]


def fingerprint_of(token_ids: Sequence[int]) -> bytes:
    """16 bytes that two different prefixes share with probability 2**-128."""
    return hashlib.blake2b(np.asarray(token_ids, dtype=np.int64).tobytes(), digest_size=16).digest()
