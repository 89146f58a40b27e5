"""From a search term to an answer sized for a model."""
