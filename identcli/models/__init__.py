"""The small GPT of the paper."""
