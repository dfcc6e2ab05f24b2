"""The paper's claims as executable statements."""
