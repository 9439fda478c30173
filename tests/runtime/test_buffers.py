from __future__ import annotations

import numpy as np

from onnxtrain.runtime.files import dtypes
from onnxtrain.runtime.state.buffers import (
    FlatBuffer,
    TensorSpec,
    TensorStore,
    aligned_zeros,
)


def test_views_share_memory_and_padding_stays_zero():
    store = TensorStore.from_arrays(
        {"a": np.ones((3, 3), np.float32), "b": np.full(5, 2, np.float32), "c": np.ones(2)}
    )
    assert list(store.buffers) == ["F32", "F64"]
    flat = store.buffers["F32"]
    for name in ("a", "b"):
        assert flat.view(name).ctypes.data % 64 == 0
        assert np.shares_memory(flat.view(name), flat.data)
    assert flat.data.sum() == 9 + 10
    flat.view("a")[...] = 0
    assert flat.data.sum() == 10
    assert store.pointer("b") == store.view("b").ctypes.data
    assert store.size == 16


def test_layout_without_padding_is_tight():
    sizes = [TensorSpec("a", dtypes.F32, (16,)), TensorSpec("b", dtypes.F32, (4, 8))]
    assert FlatBuffer(dtypes.F32, sizes).tight()
    assert FlatBuffer(dtypes.F32, [*sizes, TensorSpec("c", dtypes.F32, (3,))]).tight()
    odd = [TensorSpec("c", dtypes.F32, (3,)), *sizes]
    assert not FlatBuffer(dtypes.F32, odd).tight()


def test_aligned():
    for size in (1, 7, 1000):
        array = aligned_zeros(size, np.dtype("f8"))
        assert array.size == size
        assert array.ctypes.data % 64 == 0
        assert not array.any()
