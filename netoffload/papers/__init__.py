"""Theory: see below."""
