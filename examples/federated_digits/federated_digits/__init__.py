"""Federated training of a digits classifier."""
