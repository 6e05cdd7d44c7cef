"""Sinks that are included: they write panes where others read them, each pane once."""
