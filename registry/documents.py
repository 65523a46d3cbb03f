"""Long texts as several documents: where plug-ins that runs keep import it from."""

from registry.contracts.corpus import cut, pieces

__all__ = ["cut", "pieces"]
