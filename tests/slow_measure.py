"""What a collector should report, from two states of a nanoGPT-like model: numpy, float64, one head at a time.

Independent of identcli: ρ by dense least squares over all D² directions, eigenvalues of each Gram matrix, the charge as
written in the paper.
"""

import numpy as np


def heads_of(state, layer, n_head):
    """Per head: dict of W_Q, W_K, W_V (D, E), b_Q, b_K, b_V (D,), W_O (E, D), as float64."""
    weight = np.asarray(state[f"transformer.h.{layer}.attn.c_attn.weight"], dtype=np.float64)
    bias = np.asarray(state[f"transformer.h.{layer}.attn.c_attn.bias"], dtype=np.float64)
    out = np.asarray(state[f"transformer.h.{layer}.attn.c_proj.weight"], dtype=np.float64)
    E = weight.shape[1]
    D = E // n_head
    heads = []
    for h in range(n_head):
        rows = [slice(part * E + h * D, part * E + (h + 1) * D) for part in range(3)]
        head = {f"W_{letter}": weight[r] for letter, r in zip("QKV", rows, strict=True)}
        head |= {f"b_{letter}": bias[r] for letter, r in zip("QKV", rows, strict=True)}
        head["W_O"] = out[:, h * D : (h + 1) * D]
        heads.append(head)
    return heads


def pair_of(head, circuit):
    """(A, a, B, b): for qk the query and the key, each with its bias; for ov the value with its bias, and W_Oᵀ."""
    if circuit == "qk":
        return head["W_Q"], head["b_Q"], head["W_K"], head["b_K"]
    return head["W_V"], head["b_V"], head["W_O"].T, np.zeros(0)


def share(A, B, dA, dB, extra_null=0.0, extra_total=0.0):
    """Least squares over the D² directions (E_ij A, −E_jiᵀ… B): the share of (dA, dB) that they explain."""
    D = A.shape[0]
    columns = []
    for i in range(D):
        for j in range(D):
            S = np.zeros((D, D))
            S[i, j] = 1
            columns.append(np.concatenate([(S @ A).ravel(), (-S.T @ B).ravel()]))
    T = np.stack(columns, axis=1)
    y = np.concatenate([dA.ravel(), dB.ravel()])
    fit = T @ np.linalg.lstsq(T, y, rcond=None)[0]
    return (fit @ fit + extra_null) / (y @ y + extra_total)


def measure(before, after, start, layer, head, n_head, circuit, gradient=None, lr=None, decay=0.0):
    """All columns of the table `heads` for one layer and head."""
    A0, a0, B0, b0 = pair_of(heads_of(before, layer, n_head)[head], circuit)
    A1, a1, B1, b1 = pair_of(heads_of(after, layer, n_head)[head], circuit)
    As, _, Bs, _ = pair_of(heads_of(start, layer, n_head)[head], circuit)
    C0, C1, Cs = (A @ A.T - B @ B.T for A, B in ((A0, B0), (A1, B1), (As, Bs)))
    augmented0, augmented1 = C0 + np.outer(a0, a0), C1 + np.outer(a1, a1)
    null = ((b1 - b0) ** 2).sum()
    wide0, wide_step = np.column_stack([A0, a0]), np.column_stack([A1 - A0, a1 - a0])
    least_a = np.linalg.eigvalsh(A0 @ A0.T).min()
    least_b = np.linalg.eigvalsh(B0 @ B0.T).min()
    expected = {
        "rho": share(A0, B0, A1 - A0, B1 - B0),
        "rho_bias": share(wide0, B0, wide_step, B1 - B0, null, null),
        "update_norm": np.sqrt(((A1 - A0) ** 2).sum() + ((B1 - B0) ** 2).sum()),
        "beta": np.linalg.norm(C1),
        "tau": np.trace(C1),
        "mu": least_a + least_b,
        "eig_min_a": least_a,
        "eig_min_b": least_b,
        "drift": np.linalg.norm(C1 - C0),
        "charge_change": np.linalg.norm(C1 - Cs) / np.linalg.norm(Cs),
        "beta_bias": np.linalg.norm(augmented1),
        "drift_bias": np.linalg.norm(augmented1 - augmented0),
    }
    if gradient is not None:
        gA, ga, gB, _ = pair_of(heads_of(gradient, layer, n_head)[head], circuit)
        t = 1 - lr * decay
        step = lr**2 * (gA @ gA.T + np.outer(ga, ga) - gB @ gB.T)
        crossed = np.outer(ga, a0) + np.outer(a0, ga)
        expected["drift_predicted"] = np.linalg.norm(step + (t**2 - 1) * C0 - lr**2 * decay * crossed)
        expected["decay_share"] = (lr * decay) ** 2 * ((A0**2).sum() + (B0**2).sum()) / expected["update_norm"] ** 2
    return expected
