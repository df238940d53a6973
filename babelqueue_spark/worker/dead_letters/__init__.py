"""Move dead letters back, or drop them: what to move, and how it stays safe."""
