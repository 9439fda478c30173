"""Every test here also checks that differentiating leaves the forward graph alone."""

from tests.autodiff.forward import forward_stays as forward_stays
