"""The public endpoints, one module each."""
