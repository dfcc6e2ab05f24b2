"""Pure mathematics of the pairs: act, tangent, project, charge, balance, transport, rank. Tensors in, tensors out."""
