"""A page that trains an artifact directory in the browser, and the server that gives it out.

The page and onnxruntime-web (its WebAssembly build) are files of this package, so nothing comes
from elsewhere. The sources of the page are in ``js/``.
"""

from .server import Server as Server
from .site import Site as Site
from .site import SiteError as SiteError
