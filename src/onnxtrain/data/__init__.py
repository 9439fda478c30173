"""Data sets larger than memory, and the one that comes with the package.

`Stream` reads parquet, Arrow, tar and csv files while they are trained on.

``digits.npz`` is the test half of *Optical Recognition of Handwritten Digits* (E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49, CC BY 4.0), in
the form in which scikit-learn's ``load_digits`` gives it: 1797 images of 8×8 pixels, each
the number (0 to 16) of dark dots in a block of 4×4, by thirteen writers. Only the number types were
changed (to uint8) and the arrays compressed.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from .samples import decode_sample as decode_sample
from .samples import read_picture as read_picture
from .stream import Stream as Stream
from .stream import StreamBatches as StreamBatches

Array = npt.NDArray[Any]


def digits() -> tuple[Array, Array]:
    """Images, float32 (1797, 1, 8, 8) from 0 to 1, and labels, int64 (1797,) from 0 to 9.

    Example:
        >>> images, labels = digits()
        >>> images.shape, int(labels[0])
        ((1797, 1, 8, 8), 0)
    """
    source = resources.files(__package__).joinpath("digits.npz")
    with source.open("rb") as file, np.load(file) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    return images[:, None].astype(np.float32) / 16, labels.astype(np.int64)
