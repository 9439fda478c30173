"""The two training APIs of the predecessor: `TrainingSession` and `TrainingAgent`."""

from .agent import OrtValueCache as OrtValueCache
from .agent import OrtValueVector as OrtValueVector
from .agent import PartialGraphExecutionState as PartialGraphExecutionState
from .agent import TrainingAgent as TrainingAgent
from .graph_builder import GradientGraphBuilder as GradientGraphBuilder
from .graph_builder import GraphInfo as GraphInfo
from .graph_builder import OrtModuleGraphBuilder as OrtModuleGraphBuilder
from .graph_builder import OrtModuleGraphBuilderConfiguration as OrtModuleGraphBuilderConfiguration
from .graph_builder import PropagateCastOpsConfiguration as PropagateCastOpsConfiguration
from .graph_builder import PropagateCastOpsStrategy as PropagateCastOpsStrategy
from .graph_builder import Severity as Severity
from .graph_builder import (
    TrainingGraphTransformerConfiguration as TrainingGraphTransformerConfiguration,
)
from .parameters import ParameterError as ParameterError
from .parameters import TrainingParameters as TrainingParameters
from .session import TrainingSession as TrainingSession
