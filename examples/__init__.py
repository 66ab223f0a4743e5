"""Controllers of other products, ported: how the framework is used. Not installed with headroom."""
