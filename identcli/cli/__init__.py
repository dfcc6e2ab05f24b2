"""The words a user types. Nothing heavy is imported at start."""
