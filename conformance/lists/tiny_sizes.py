"""Sizes that small configurations have in common."""

WIDTH, HEADS, HEAD_WIDTH, INNER, LAYERS, VOCABULARY = 32, 4, 8, 48, 2, 96
