"""Helpers around ModelProtos, in the module where scripts look for them."""

from ..graph.protos import find_value as find_value
from ..graph.protos import generate_graph_name as generate_graph_name
from ..graph.protos import get_input_from_input_name as get_input_from_input_name
from ..graph.protos import get_output_from_output_name as get_output_from_output_name
from ..graph.protos import node_arg_exists as node_arg_exists
from ..graph.protos import register_graph_outputs as register_graph_outputs
