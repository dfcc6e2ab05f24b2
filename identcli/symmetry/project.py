"""The part of an update that lies in the unidentified subspace: the paper's ρ (5.1; theory 13).

The paper prints min over S of ‖δA − SA‖² + ‖δB − SᵀB‖²; the second sign must be + for (SA, −SᵀB) to be a direction
that the model does not see, and its own R and Sylvester equation are those of the + form. That form is used here.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry.pair import Pair, augmented, null_energy, plain_rows, rotated_rows, squared_norm


class Spectra(NamedTuple):
    """Eigenvalues (…, D), ascending, and eigenvectors (…, D, D) of AAᵀ and of BBᵀ."""

    values_a: Tensor
    vectors_a: Tensor
    values_b: Tensor
    vectors_b: Tensor


def spectra(pair: Pair) -> Spectra:
    """Spectra of AAᵀ and BBᵀ (bias columns only when they are inside A and B)."""
    values_a, vectors_a = torch.linalg.eigh(pair.A @ pair.A.mT)
    values_b, vectors_b = torch.linalg.eigh(pair.B @ pair.B.mT)
    return Spectra(values_a, vectors_a, values_b, vectors_b)


class Projection(NamedTuple):
    """X (…, D, D) in the group's algebra with (XA, −XᵀB) nearest to the update, and its squared norm (…)."""

    X: Tensor
    energy: Tensor


def project(group: Group, pair: Pair, update: Pair, known: Spectra | None = None) -> Projection:
    """Orthogonal projection of `update` on the tangent space {(XA, −XᵀB)} at `pair`.

    Unrotated rows: stationarity is X P + Q X = R with P = AAᵀ, Q = BBᵀ, R = δA Aᵀ − B δBᵀ, solved in the eigenbases
    of P and Q; energy ⟨X, R⟩. Rotated pairs of rows, as complex rows u, v: s = (uᴴδu − conj(vᴴδv)) / (|u|² + |v|²),
    energy |s|² (|u|² + |v|²). Where A and B both lose rank the missing directions move nothing: X is 0 there.
    `known`: spectra of the pair, when the caller has them already (GL(D) only).
    """
    X = torch.zeros(*pair.A.shape[:-1], group.size, dtype=pair.A.dtype, device=pair.A.device)
    energy = pair.A.new_zeros(pair.A.shape[:-2])
    if group.rotary:
        s, rotated_energy = _project_rotated(group, pair, update)
        first, second = (list(rows) for rows in zip(*group.pairs, strict=True))
        X[..., first, first] = X[..., second, second] = s.real
        X[..., second, first], X[..., first, second] = s.imag, -s.imag
        energy = energy + rotated_energy
    if group.plain:
        plain_pair = Pair(plain_rows(group, pair.A), plain_rows(group, pair.B))
        plain_update = Pair(plain_rows(group, update.A), plain_rows(group, update.B))
        known = known if known is not None and not group.rotary else spectra(plain_pair)
        S, plain_energy = _project_plain(plain_pair, plain_update, known)
        X[..., group.rotary :, group.rotary :] = S
        energy = energy + plain_energy
    return Projection(X, energy)


def _project_rotated(group: Group, pair: Pair, update: Pair) -> tuple[Tensor, Tensor]:
    u, v = rotated_rows(group, pair.A), rotated_rows(group, pair.B)
    du, dv = rotated_rows(group, update.A), rotated_rows(group, update.B)
    overlap = (u.conj() * du).sum(-1) - (v.conj() * dv).sum(-1).conj()
    weight = u.abs().square().sum(-1) + v.abs().square().sum(-1)
    s = torch.where(weight > 0, overlap / weight.clamp_min(torch.finfo(weight.dtype).tiny), 0)
    return s, (s.abs().square() * weight).sum(-1)


def _project_plain(pair: Pair, update: Pair, known: Spectra) -> tuple[Tensor, Tensor]:
    p, U_P, q, U_Q = known
    R = update.A @ pair.A.mT - pair.B @ update.B.mT
    R_eigen = U_Q.mT @ R @ U_P
    weight = q.unsqueeze(-1) + p.unsqueeze(-2)
    # Eigenvalues carry an error of about D·ε times the largest one; a sum below that is a direction that moves nothing.
    least = p.shape[-1] * torch.finfo(p.dtype).eps * (p[..., -1] + q[..., -1])
    moves = weight > least[..., None, None]
    X_eigen = torch.where(moves, R_eigen / torch.where(moves, weight, 1), 0)
    # |R|²/weight, not ⟨X, R⟩ in the first basis: a sum of positive terms can't cancel when the share is 1e-30.
    energy = (X_eigen.square() * weight).sum((-2, -1))
    return U_Q @ X_eigen @ U_P.mT, energy


def unidentified_share(group: Group, pair: Pair, update: Pair, known: Spectra | None = None) -> Tensor:
    """ρ (…) of the weights alone, as in the paper: the projection's energy over ‖δA‖² + ‖δB‖². A zero update: NaN."""
    weights, moved = Pair(pair.A, pair.B), Pair(update.A, update.B)
    return project(group, weights, moved, known).energy / squared_norm(moved)


def unidentified_share_with_biases(group: Group, pair: Pair, update: Pair) -> Tensor:
    """ρ (…) on the bias-augmented pair; an unrotated key-bias update counts in full. A zero update: NaN."""
    energy = project(group, augmented(group, pair), augmented(group, update)).energy
    return (energy + null_energy(group, update)) / squared_norm(update)
