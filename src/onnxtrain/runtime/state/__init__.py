"""What is trained: flat buffers of parameters, gradients and moments, and the checkpoint."""
