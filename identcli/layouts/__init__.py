"""Where the role tensors (W_Q, W_K, W_V, W_O and their biases, per head) lie inside the tensors of a model."""
