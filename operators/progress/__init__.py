"""How far the input has come: watermarks by source, their generators, CTIs, buffers of origins. Pure."""
