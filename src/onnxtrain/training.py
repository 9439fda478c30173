"""The two training APIs of the predecessor, found where they always were: `compat.ort`."""

from .compat.ort.agent import OrtValueCache as OrtValueCache
from .compat.ort.agent import OrtValueVector as OrtValueVector
from .compat.ort.agent import PartialGraphExecutionState as PartialGraphExecutionState
from .compat.ort.agent import TrainingAgent as TrainingAgent
from .compat.ort.graph_builder import GradientGraphBuilder as GradientGraphBuilder
from .compat.ort.graph_builder import GraphInfo as GraphInfo
from .compat.ort.graph_builder import OrtModuleGraphBuilder as OrtModuleGraphBuilder
from .compat.ort.graph_builder import (
    OrtModuleGraphBuilderConfiguration as OrtModuleGraphBuilderConfiguration,
)
from .compat.ort.graph_builder import PropagateCastOpsConfiguration as PropagateCastOpsConfiguration
from .compat.ort.graph_builder import PropagateCastOpsStrategy as PropagateCastOpsStrategy
from .compat.ort.graph_builder import Severity as Severity
from .compat.ort.graph_builder import (
    TrainingGraphTransformerConfiguration as TrainingGraphTransformerConfiguration,
)
from .compat.ort.parameters import ParameterError as ParameterError
from .compat.ort.parameters import TrainingParameters as TrainingParameters
from .compat.ort.session import TrainingSession as TrainingSession
