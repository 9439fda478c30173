"""PyTorch companions of the predecessor: gradient graphs, and what need not be built any more."""

from .orttrainer.experimental import export_gradient_graph as export_gradient_graph


def build_torch_cpp_extensions() -> None:
    """Nothing to build: `ORTModule` needs no compiled extensions any more."""
    print("onnxtrain needs no PyTorch extensions; nothing was built.")
