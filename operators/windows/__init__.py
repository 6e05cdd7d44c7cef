"""The window operator: windows of every kind, by slices where that is faster. Pure."""
