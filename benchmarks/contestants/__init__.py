"""How each contestant of the benchmark trains a workload."""
