"""Coverage-guided tests of the codec."""
