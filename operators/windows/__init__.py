"""The window operator: windows of every kind, in slices if that is faster. Pure."""
