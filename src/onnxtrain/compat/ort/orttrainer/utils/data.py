"""Samplers that give every process of a group the same amount of work."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import torch.distributed
from torch.utils.data import Sampler

from .....errors import OnnxTrainError


class SamplerError(OnnxTrainError, ValueError):
    """A sampler cannot be set up this way."""


class LoadBalancingDistributedSampler(Sampler[int]):
    """Samples of similar complexity for all processes in every step.

    Samples are sorted by complexity and dealt out in rounds, one sample per process and round, so
    that what is computed at the same time takes about the same time. Shuffling changes the order
    of the rounds, not who is in them.

    Args:
        dataset: a dataset with a length.
        complexity_fn: the complexity of a sample, its number of tokens say.
        world_size: number of processes; by default from `torch.distributed`.
        rank: this process; by default from `torch.distributed`.
        shuffle: shuffle the rounds anew in every epoch (see `set_epoch`).
        group_size: sort only within groups of so many samples of the (shuffled) dataset; by
            default the whole dataset is one group.
        seed: of the shuffling; the same in all processes.
        drop_last: drop samples that do not fill a round; by default some are used twice.
        random_level: between 0 and 1: noise added to complexities, as a share of their range.

    Example:
        >>> sizes = [5, 1, 4, 2, 3, 6]
        >>> two = [LoadBalancingDistributedSampler(sizes, lambda s: s, 2, rank, shuffle=False)
        ...        for rank in (0, 1)]
        >>> [[sizes[i] for i in sampler] for sampler in two]
        [[1, 3, 5], [2, 4, 6]]
    """

    def __init__(
        self,
        dataset: Sized,
        complexity_fn: Callable[[Any], float],
        world_size: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        group_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0,
    ) -> None:
        if world_size is None or rank is None:
            if not torch.distributed.is_available() or not torch.distributed.is_initialized():
                raise SamplerError(
                    "Give world_size and rank, or initialise torch.distributed before."
                )
            world_size = torch.distributed.get_world_size() if world_size is None else world_size
            rank = torch.distributed.get_rank() if rank is None else rank
        if not 0 <= rank < world_size:
            raise SamplerError(f"rank must be in 0..{world_size - 1}, not {rank}.")
        if not 0 <= random_level <= 1:
            raise SamplerError(f"random_level must be between 0 and 1, not {random_level}.")
        if group_size is not None and group_size < 1:
            raise SamplerError(f"group_size must be positive, not {group_size}.")
        count = len(dataset)
        if count < (world_size if drop_last else 1):
            raise SamplerError(f"{count} samples are too few for {world_size} processes.")
        self.dataset, self.world_size, self.rank = dataset, world_size, rank
        self.shuffle, self.group_size, self.seed = shuffle, group_size, seed
        self.drop_last, self.epoch = drop_last, 0
        samples: Any = dataset
        self._complexity = [float(complexity_fn(samples[i])) for i in range(count)]
        self._noise = random_level * (max(self._complexity) - min(self._complexity))
        rounds = count // world_size if drop_last else -(-count // world_size)
        self.num_samples = rounds

    def set_epoch(self, epoch: int) -> None:
        """Shuffle differently from now on; call it before every epoch, in all processes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        return iter([chunk[self.rank] for chunk in self.rounds()])

    def rounds(self) -> list[list[int]]:
        """The samples of every round, one per process; the same in all processes."""
        draw = random.Random(f"{self.seed}/{self.epoch if self.shuffle else 0}")
        indices = list(range(len(self._complexity)))
        if self.shuffle and self.group_size is not None:
            draw.shuffle(indices)
        group = self.group_size or len(indices)
        complexity = [c + draw.uniform(0, self._noise) for c in self._complexity]
        ordered: list[int] = []
        for start in range(0, len(indices), group):
            ordered += sorted(indices[start : start + group], key=complexity.__getitem__)
        size, total = self.world_size, self.num_samples * self.world_size
        ordered = (ordered * -(-total // len(ordered)))[:total]
        chunks = [ordered[i : i + size] for i in range(0, total, size)]
        if self.shuffle:
            draw.shuffle(chunks)
        return chunks


class LoadBalancingDistributedBatchSampler(Sampler[list[int]]):
    """Batches of varying size, as many for each process.

    Args:
        sampler: the sampler of single samples.
        batch_fn: makes batches of a list of samples: as many as fit into so many tokens, say.
        drop_last: let all processes stop with the first; by default batches are used twice by
            those that have fewer.
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[Sequence[int]], Sequence[list[int]]],
        drop_last: bool = False,
    ) -> None:
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise SamplerError(
                f"sampler is a LoadBalancingDistributedSampler, not {type(sampler).__name__}."
            )
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last

    def set_epoch(self, epoch: int) -> None:
        """As for the sampler."""
        self.sampler.set_epoch(epoch)

    def _batches(self) -> list[list[int]]:
        rounds = self.sampler.rounds()
        of_all = [
            list(self.batch_fn([chunk[rank] for chunk in rounds]))
            for rank in range(self.sampler.world_size)
        ]
        counts = [len(batches) for batches in of_all]
        count = min(counts) if self.drop_last else max(counts)
        mine = of_all[self.sampler.rank]
        return (mine * -(-count // max(len(mine), 1)))[:count]

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches())
