"""Folders of images: size, mean and deviation of their colours, and changes at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..runtime.loop.batches import ArrayBatches
from ..summary import ValueSummary
from .output import UserError, names_in, one_of

if TYPE_CHECKING:
    from .settings import Settings

Array = npt.NDArray[Any]
IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
"""What models of torchvision and timm are trained with."""
LARGEST = 8192
GREY = np.array([0.299, 0.587, 0.114], np.float32)
JITTER = 0.2
"""By how much brightness, contrast and saturation change, each way."""


@dataclass(frozen=True)
class ImageSettings:
    """How pictures become numbers.

    Attributes:
        size: height and width; None for those of the model.
        mean: subtracted from each channel, of numbers from 0 to 1.
        std: by which it is divided then.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, settings: Settings, metadata: Mapping[str, str]) -> ImageSettings:
        """What the options say, else what the metadata of the model do."""
        return cls(
            _size(settings.image_size) or _sizes_in(metadata),
            _numbers(settings.mean, "--mean", "image_mean", metadata) or (0.0,),
            _numbers(settings.std, "--std", "image_std", metadata) or (1.0,),
        )

    @property
    def metadata(self) -> dict[str, str]:
        """For the model that is written: who uses it, and the next run, can read them there."""
        known: dict[str, Any] = {"image_mean": self.mean, "image_std": self.std}
        if self.size is not None:
            known["image_size"] = self.size
        return {name: json.dumps(value) for name, value in known.items()}

    def layout(self, value: ValueSummary) -> tuple[bool, int, int, int]:
        """Whether channels come last, their number, height and width of an input."""
        from .inspect import shown

        shape = value.shape or ()
        for last, axis, sides in ((False, 1, shape[2:]), (True, 3, shape[1:3])):
            channels = shape[axis] if len(shape) == 4 else None
            if channels in (1, 3) and isinstance(channels, int):
                height, width = self._sides(value, sides)
                return last, channels, height, width
        raise UserError(
            f"Images need an input N×C×H×W or N×H×W×C with 1 or 3 channels; {value.name!r} is "
            f"{shown(value.shape)}. Give arrays as npz."
        )

    def _sides(self, value: ValueSummary, sides: Sequence[int | str | None]) -> tuple[int, int]:
        fixed = tuple(d for d in sides if isinstance(d, int))
        if len(fixed) == 2:
            if self.size not in (None, fixed):
                raise UserError(
                    f"--image-size {self.size[0]}x{self.size[1]}: the input {value.name!r} takes "
                    f"{fixed[0]}x{fixed[1]} only. Leave --image-size out, or export the model with "
                    "dynamic height and width."
                )
            return fixed
        if self.size is None:
            raise UserError(
                f"The input {value.name!r} takes images of any size: choose one with --image-size, "
                "for example 224."
            )
        return self.size

    def normalized(self, pixels: Array, channels_last: bool) -> Array:
        """Numbers from 0 to 1, minus the mean, by the deviation."""
        mean, std = self.per_channel(pixels.shape[-1 if channels_last else 1], channels_last)
        return (pixels - mean) / std

    def per_channel(self, channels: int, channels_last: bool) -> tuple[Array, Array]:
        """Mean and deviation, ready to be combined with pictures."""
        numbers = []
        for option, values in (("--mean", self.mean), ("--std", self.std)):
            if len(values) not in (1, channels):
                raise UserError(
                    f"{option} has {len(values)} numbers, and the images {channels} channels: "
                    "give one for all, or one for each."
                )
            array = np.array(values * (channels if len(values) == 1 else 1), np.float32)
            numbers.append(array if channels_last else array.reshape(1, -1, 1, 1))
        return numbers[0], numbers[1]


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(s.isdigit() and 0 < int(s) <= LARGEST for s in sides):
        raise UserError(f"--image-size {text!r} is a number of pixels, or two as in 224x320.")
    return int(sides[0]), int(sides[-1])


def _sizes_in(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    values = _listed(metadata.get("image_size", ""))
    if len(values) != 2 or not all(v == int(v) and 0 < v <= LARGEST for v in values):
        return None
    return int(values[0]), int(values[1])


def _numbers(
    text: str | None, option: str, key: str, metadata: Mapping[str, str]
) -> tuple[float, ...]:
    if text is None:
        return _listed(metadata.get(key, ""))
    if text == "imagenet":
        return IMAGENET[key]
    values = _listed(f"[{text}]")
    if not values or (key == "image_std" and min(values) <= 0):
        raise UserError(
            f"{option} {text!r} is one number, or one per channel with commas between them, or "
            "imagenet."
        )
    return values


def _listed(text: str) -> tuple[float, ...]:
    """Numbers of a JSON list; none if it is anything else."""
    try:
        values = json.loads(text[:1000])
    except (ValueError, RecursionError):
        return ()
    if not isinstance(values, list) or len(values) > 4:
        return ()
    if not all(isinstance(v, int | float) and abs(v) < 1e6 for v in values):
        return ()
    return tuple(float(v) for v in values)


# --- changes at random ----------------------------------------------------------------------------


def flip(images: Array, rng: np.random.Generator) -> Array:
    """Half of the images from left to right; N×C×H×W."""
    mirrored = rng.random(len(images)) < 0.5
    return np.where(mirrored[:, None, None, None], images[..., ::-1], images)


def crop(images: Array, rng: np.random.Generator) -> Array:
    """Moved by up to an eighth of their size; what is missing is mirrored at the edge."""
    height, width = images.shape[2:]
    margin = [min(max(1, side // 8), side - 1) for side in (height, width)]
    padded = np.pad(images, ((0, 0), (0, 0), *((m, m) for m in margin)), mode="reflect")
    tops, lefts = (rng.integers(0, 2 * m + 1, len(images)) for m in margin)
    parts = [
        image[:, top : top + height, left : left + width]
        for image, top, left in zip(padded, tops, lefts)
    ]
    return np.stack(parts)


def colour(images: Array, rng: np.random.Generator) -> Array:
    """Brightness, contrast and saturation changed a little; numbers from 0 to 1."""
    brightness, contrast, saturation = (
        rng.uniform(1 - JITTER, 1 + JITTER, (len(images), 1, 1, 1)).astype(np.float32)
        for _ in range(3)
    )
    images = images * brightness
    mean = images.mean(axis=(1, 2, 3), keepdims=True)
    images = (images - mean) * contrast + mean
    if images.shape[1] == 3:
        grey = np.tensordot(images, GREY, ([1], [0]))[:, None]
        images = grey + (images - grey) * saturation
    return np.asarray(np.clip(images, 0.0, 1.0))


AUGMENTATIONS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "flip": flip,
    "crop": crop,
    "colour": colour,
}


@dataclass(frozen=True)
class Augmentation:
    """Changes of the images of a batch, one after the other.

    Attributes:
        names: of `AUGMENTATIONS`.
        settings: how the pictures became numbers.
        channels_last: how they are stored.
    """

    names: tuple[str, ...]
    settings: ImageSettings
    channels_last: bool

    def __call__(self, images: Array, rng: np.random.Generator) -> Array:
        """The images of one batch, changed."""
        dtype = images.dtype
        channels = images.shape[-1 if self.channels_last else 1]
        mean, std = self.settings.per_channel(channels, self.channels_last)
        whole = dtype == np.uint8
        pixels = images.astype(np.float32) / 255 if whole else images * std + mean
        if self.channels_last:
            pixels = pixels.transpose(0, 3, 1, 2)
        for name in self.names:
            pixels = AUGMENTATIONS[name](pixels, rng)
        if self.channels_last:
            pixels = pixels.transpose(0, 2, 3, 1)
        result = np.round(pixels * 255) if whole else (pixels - mean) / std
        return np.ascontiguousarray(result, dtype)


def read_augmentations(text: str | None) -> tuple[str, ...]:
    """What ``--augment`` names."""
    names = names_in(text)
    return tuple(one_of(name, AUGMENTATIONS, "--augment") for name in names)


class AugmentedBatches(ArrayBatches):
    """Rows in a new order each epoch, the images among them changed at random.

    What is drawn follows from (seed, epoch, batch), so that a resumed run draws the same.

    Args:
        arrays: images first.
        batch_size: rows per batch.
        seed: of the order and of the changes.
        drop_last: leave out a last, smaller batch.
        augmentation: the changes.
    """

    def __init__(
        self,
        arrays: Sequence[Array],
        batch_size: int,
        seed: int,
        drop_last: bool,
        augmentation: Augmentation,
    ) -> None:
        super().__init__(arrays, batch_size, True, seed, drop_last)
        self.augmentation = augmentation

    def epoch(self, number: int, skip: int = 0) -> Iterator[list[Any]]:
        """The batches of one pass."""
        for index, (images, *others) in enumerate(super().epoch(number, skip), skip):
            rng = np.random.default_rng([self.seed, number, index])
            yield [self.augmentation(images, rng), *others]
