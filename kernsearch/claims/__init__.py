"""What a program costs: traffic by level, work, launches, barriers and workspace, computed from its loops."""

from .costs import Claims
from .total import claims, claims_of

__all__ = ["Claims", "claims", "claims_of"]
