"""Tokenisers."""
