"""Pictures without another program: shapes (`scene`), and graphs of models (`layout`)."""

from .layout import Drawing as Drawing
from .layout import arrange as arrange
from .scene import Box as Box
from .scene import Line as Line
from .scene import Scene as Scene
from .scene import Text as Text
from .scene import beside as beside
