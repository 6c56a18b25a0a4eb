"""Programs: immutable graphs of values, partitioned into kernels, and how they are written down."""

from .graph import Kernel, Place, Program, empty_graph, graphml, is_dag_with_root
from .site import Annotation, Site

__all__ = ["Annotation", "Kernel", "Place", "Program", "Site", "empty_graph", "graphml", "is_dag_with_root"]
