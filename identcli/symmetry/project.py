"""The part of an update that lies in the unidentified subspace: the paper's ρ (5.1; theory 13).

The paper prints min over S of ‖δA − SA‖² + ‖δB − SᵀB‖²; the second sign must be + for (SA, −SᵀB) to be a direction
that the model does not see, and its own R and Sylvester equation are those of the + form. That form is used here.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry.charge import Grams, grams
from identcli.symmetry.pair import Pair, augmented, null_energy, outer, plain_rows, rotated_rows, squared_norm
from identcli.symmetry.threads import hand_in_hand

# Below this ratio of the least to the largest eigenvalue the short way to ρ with biases could lose half the digits.
LEAST_CONDITION = 1e-8

# Entries of a batch up to which it isn't worth waking another thread: on two cores both ways take 18 ms for 128
# matrices of 32 × 32, 32 of 64 × 64, 8 of 128 × 128.
WORTH_SHARING = 128 * 32 * 32

# Parts of a larger batch for each thread, so that one which begins late takes fewer.
PARTS_A_THREAD = 4


class Spectra(NamedTuple):
    """Eigenvalues (…, D), ascending, and eigenvectors (…, D, D) of AAᵀ and of BBᵀ."""

    values_a: Tensor
    vectors_a: Tensor
    values_b: Tensor
    vectors_b: Tensor


def spectra(pair: Pair, known: Grams | None = None) -> Spectra:
    """Spectra of AAᵀ and BBᵀ (bias columns only when they are inside A and B). `known`: the two, where at hand."""
    values, vectors = _eigh(torch.stack(known or grams(pair)))
    return Spectra(values[0], vectors[0], values[1], vectors[1])


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Of a batch; on a CPU in parts, since LAPACK is called for one matrix after the other."""
    if matrices.device.type != "cpu":
        return torch.linalg.eigh(matrices)
    if matrices.numel() <= WORTH_SHARING:
        return hand_in_hand(torch.linalg.eigh, [matrices])[0]
    parts = matrices.flatten(0, -3).chunk(PARTS_A_THREAD * torch.get_num_threads())
    values, vectors = (torch.cat(of_parts) for of_parts in zip(*hand_in_hand(torch.linalg.eigh, parts), strict=True))
    return values.view(matrices.shape[:-1]), vectors.view(matrices.shape)


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
        S, plain_energy = _project_plain(_overlap(plain_pair, plain_update), known)
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


def _overlap(pair: Pair, update: Pair) -> Tensor:
    """R = δA Aᵀ − B δBᵀ."""
    return update.A @ pair.A.mT - pair.B @ update.B.mT


def _project_plain(R: Tensor, known: Spectra) -> tuple[Tensor, Tensor]:
    R = known.vectors_b.mT @ R @ known.vectors_a
    inverse, _ = _inverse(known)
    return known.vectors_b @ (R * inverse) @ known.vectors_a.mT, _energy(R, inverse)


def _inverse(known: Spectra) -> tuple[Tensor, Tensor]:
    """1 / (q_i + p_j), (…, D, D), by which the solution is R where P and Q are diagonal; 0 where nothing moves. And the
    ratio (…) of the least to the largest of these sums."""
    p, q = known.values_a, known.values_b
    weight = q.unsqueeze(-1) + p.unsqueeze(-2)
    ratio = weight[..., 0, 0] / weight[..., -1, -1]
    inverse = weight.reciprocal()
    # Eigenvalues carry an error of about D·ε times the largest one; a sum below that is a direction that moves nothing.
    least = p.shape[-1] * torch.finfo(p.dtype).eps
    if not (ratio > least).all():
        inverse = torch.where(weight > least * weight[..., -1:, -1:], inverse, 0)
    return inverse, ratio


def _energy(R: Tensor, inverse: Tensor) -> Tensor:
    """Σ R²/weight, not ⟨X, R⟩ in the first basis: a sum of positive terms can't cancel when the share is 1e-30."""
    return (R.square() * inverse).sum((-2, -1))


def unidentified_share(group: Group, pair: Pair, update: Pair, known: Spectra | None = None) -> Tensor:
    """ρ (…) of the weights alone, as in the paper: the projection's energy over ‖δA‖² + ‖δB‖². A zero update: NaN."""
    weights, moved = Pair(pair.A, pair.B), Pair(update.A, update.B)
    return project(group, weights, moved, known).energy / squared_norm(moved)


def unidentified_share_with_biases(group: Group, pair: Pair, update: Pair) -> Tensor:
    """ρ (…) on the bias-augmented pair; an unrotated key-bias update counts in full. A zero update: NaN."""
    energy = project(group, augmented(group, pair), augmented(group, update)).energy
    return (energy + null_energy(group, update)) / squared_norm(update)


def unidentified_shares(
    group: Group, pair: Pair, update: Pair, known: Spectra | None = None, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """ρ of the weights alone and ρ with biases, each (…), for less than the two apart.

    `known`: spectra of the pair, `weights`: ‖δA‖² + ‖δB‖², when the caller has them already.

    Without rotary positions the second needs no spectrum of its own. In the eigenbases of P = AAᵀ and Q = BBᵀ the
    stationarity X (P + aaᵀ) + Q X = R of the augmented pair is, row by row, x_i (diag(q_i + p) + ααᵀ) = r_i, α = U_Pᵀa:
    a diagonal matrix plus one of the rank of the bias columns, solved by the formula of Sherman, Morrison and Woodbury.
    """
    wide = pair.a is not None and 4 * pair.a.shape[-1] > group.size
    if group.rotary or wide:
        return unidentified_share(group, pair, update, known), unidentified_share_with_biases(group, pair, update)
    known = known or spectra(pair)
    R = known.vectors_b.mT @ _overlap(pair, update) @ known.vectors_a
    inverse, ratio = _inverse(known)
    energy = augmented_energy = _energy(R, inverse)
    if pair.a is not None and update.a is not None:
        if (ratio > LEAST_CONDITION).all():
            augmented_energy = _bordered_energy(R, known.vectors_a.mT @ pair.a, known.vectors_b.mT @ update.a, inverse)
        else:
            augmented_energy = project(group, augmented(group, pair), augmented(group, update)).energy
    if weights is None:
        weights = squared_norm(Pair(update.A, update.B))
    biases = sum(part.square().sum((-2, -1)) for part in (update.a, update.b) if part is not None)
    return energy / weights, (augmented_energy + null_energy(group, update)) / (weights + biases)


def _bordered_energy(R: Tensor, alpha: Tensor, moved: Tensor, inverse: Tensor) -> Tensor:
    """R of the weights, the bias columns (…, D, m) and their update, each in the eigenbases."""
    Y = (R + outer(moved, alpha)) * inverse
    Xa = _inner(inverse, alpha, Y @ alpha)
    X = Y - outer(Xa, alpha) * inverse
    # As above a sum of positive terms: ⟨X, X (P + aaᵀ) + Q X⟩.
    return (X.square() / inverse).sum((-2, -1)) + Xa.square().sum((-2, -1))


def _inner(inverse: Tensor, alpha: Tensor, values: Tensor) -> Tensor:
    """Xα: (1 + αᵀ diag(1/weight_i) α)⁻¹ times the values (…, D, m), which are Yα, of each row i."""
    columns = alpha.shape[-1]
    if columns == 1:
        return values / (1 + inverse @ alpha.square())
    squares = (alpha.unsqueeze(-1) * alpha.unsqueeze(-2)).flatten(-2)
    inner = (inverse @ squares).unflatten(-1, (columns, columns))
    inner = inner + torch.eye(columns, dtype=alpha.dtype, device=alpha.device)
    return torch.linalg.solve(inner, values.unsqueeze(-1)).squeeze(-1)
