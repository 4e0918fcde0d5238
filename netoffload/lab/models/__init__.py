"""Models: the papers' formulas (``cost``) and the codecs as circuits (``hardware``)."""
