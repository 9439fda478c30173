"""The public lists: one module each."""
