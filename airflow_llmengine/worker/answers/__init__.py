"""What is known of answers before the engine is asked: which records ask the same, and what came out."""
