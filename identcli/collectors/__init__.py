"""What is measured around an optimizer step, in any training loop."""
