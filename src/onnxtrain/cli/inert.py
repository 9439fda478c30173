"""Names out of files, made harmless before they are shown; see `onnxtrain.drawing.inert`."""

from ..drawing.inert import inert as inert
