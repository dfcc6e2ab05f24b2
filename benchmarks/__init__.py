"""Speed, always as a ratio against a peer in the same run. Never part of the tests."""
