"""Statements about runs on invented run folders: lifelike ones hold, spoilt ones fail, short ones aren't decided."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from identcli.store import events, metrics, record
from identcli.store.folder import NotARun
from identcli.theory.claim import Outcome
from identcli.theory.recorded import Run, load, load_one
from identcli.theory.run_claims import run_claims, verify_run
from identcli.theory.sweep_claims import STUDENT_95, line, verify_sweep

ADAMW = {"name": "adamw", "weight_decay": 0.1, "betas": [0.9, 0.99], "eps": 1e-8}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "sgd": ({"name": "sgd", "weight_decay": 0.0, "momentum": 0.0}, "off"),
    "sgd_decay": ({"name": "sgd", "weight_decay": 4e-4, "momentum": 0.0}, "off"),
    "adamw": (ADAMW, "off"),
    "adamw_rebalanced": (ADAMW, "on"),
    "adamw_state_only": (ADAMW, "state_only"),
}
LAYERS, HEADS, EVERY, STEPS = 2, 2, 10, 401
Columns = dict[str, Any]


def config(case: str, **changes: Any) -> dict[str, Any]:
    optimizer, mode = CASES[case]
    whole: dict[str, Any] = {
        "name": None,
        "seed": 1,
        "steps": STEPS,
        "lr": 0.25 if "sgd" in case else 1e-3,
        "dtype": "float32",
        "tf32": False,
        "model": {"n_layer": LAYERS, "n_head": HEADS, "n_embd": 8, "block_size": 8, "dropout": 0.0, "bias": True},
        "optimizer": dict(optimizer),
        "schedule": {"warmup": 100, "min_ratio": 0.1},
        "rebalance": {"mode": mode, "every": 100, "target": "weights", "state": "clear", "circuits": ["qk"]},
    }
    for name, value in changes.items():
        part, _, key = name.rpartition("__")
        (whole[part] if part else whole)[key] = value
    return whole


def row(settings: dict[str, Any], step: int) -> Columns:
    """What a run of the case measures at a step, per head."""
    sgd, decay = settings["optimizer"]["name"] == "sgd", settings["optimizer"]["weight_decay"]
    lr, ones = settings["lr"], np.ones(LAYERS * HEADS)
    start = 0.2 + 0.01 * np.arange(LAYERS * HEADS)
    tau = 0.1 * np.linspace(-1, 1, LAYERS * HEADS)
    beta = start * np.exp(-2 * decay * lr * step) if sgd else start * (1 + step / STEPS)
    if settings["rebalance"]["mode"] == "on" and step >= 100:
        beta = 1e-3 * ones * (1 + step % 100)
    share = 1e-6 if not decay else 1e-3 if sgd else 0.1
    drift = 1e-6 * (lr / 0.25) ** 2 * ones
    return {
        "rho": share * ones,
        "update_norm": ones,
        "beta": beta,
        "tau": tau * (1 if sgd else 1 + step / 100),
        "mu": 0.5 * ones,
        "eig_min_a": 0.1 * ones,
        "eig_min_b": 0.1 * ones,
        "drift": drift,
        "charge_change": 0 * ones,
        "rho_bias": 1.05e-9 * ones,
        "beta_bias": beta,
        "rho_floor": 1e-9 * ones,
        "drift_floor": 1e-9 * ones,
        **({"drift_bias": drift, "drift_predicted": drift * 1.001} if sgd else {}),
    }


def write(
    path: Path,
    settings: dict[str, Any],
    edit: Callable[[str, int, Columns], None] = lambda table, step, columns: None,
    stop: int = STEPS,
    loss: float = 2.0,
) -> Path:
    """A run folder; `edit(table, step, columns)` may spoil a row or an event before it is written."""
    path.mkdir(parents=True)
    record.write_config(path, settings)
    layer, head = np.divmod(np.arange(LAYERS * HEADS), HEADS)
    with metrics.MetricWriter(path) as writer:

        def add(table: str, step: int, **columns: Any) -> None:
            edit(table, step, columns)
            if columns:
                writer.add(table, step, **columns)

        for k in range(stop):
            add("train", k, loss=loss, lr=settings["lr"], grad_norm=1.0, tokens=k, elapsed_s=1.0)
            if k % EVERY == 0:
                add("heads", k, layer=layer, head=head, circuit="qk", **row(settings, k))
                query = np.full(LAYERS, 2e-3)
                add(
                    "biases",
                    k,
                    layer=np.arange(LAYERS),
                    query_max=query,
                    query_norm=query,
                    key_max=query * 1e-7,
                    key_norm=query,
                )
        add("eval", settings["steps"], split="val", loss=loss)
    mode = settings["rebalance"]["mode"]
    for step in range(100, stop, 100) if mode != "off" else ():
        before = [[0.2, 0.2], [0.2, 0.2]]
        after = [[1e-8, 1e-8], [1e-8, 1e-8]] if mode == "on" else before
        event = {"beta_before": before, "beta_after": after, "output_change": 1e-6, "output_scale": 5.0}
        edit("event", step, event)
        events.append(path, {"step": step, "event": "rebalance", "mode": mode, "circuit": "qk", **event})
    record.write_status(path, state="finished", step=stop, steps=settings["steps"])
    return path


def verdicts(outcomes: list[Outcome]) -> dict[str, bool | None]:
    return {outcome.claim.id: outcome.holds for outcome in outcomes}


DECIDES = {
    "sgd-keeps-beta": ["sgd"],
    "sgd-decay-shrinks-beta": ["sgd_decay"],
    "adamw-changes-beta": ["adamw", "adamw_state_only"],
    "drift-as-predicted": ["sgd", "sgd_decay"],
    "sgd-share-is-rounding": ["sgd"],
    "sgd-share-below-isotropic": ["sgd"],
    "adamw-share-near-isotropic": ["adamw", "adamw_rebalanced", "adamw_state_only"],
    "adamw-spreads-tau": ["adamw", "adamw_state_only"],
    "sgd-keeps-tau": ["sgd", "sgd_decay"],
    "no-rank-loss": list(CASES),
    "key-bias-gradients-vanish": list(CASES),
    "rebalancing-makes-beta-zero": ["adamw_rebalanced"],
    "beta-grows-after-rebalancing": ["adamw_rebalanced"],
    "rebalancing-keeps-the-output": ["adamw_rebalanced"],
    "state-only-leaves-weights": ["adamw_state_only"],
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_decides_what_is_said_of_it_and_nothing_else(case: str, tmp_path: Path) -> None:
    found = verdicts(verify_run(load_one(write(tmp_path / "run", config(case)))))
    assert found == {name: True if case in cases else None for name, cases in DECIDES.items()}


def _head(name: str, change: Callable[[np.ndarray], np.ndarray], from_step: int = 200) -> Any:
    def edit(table: str, step: int, columns: Columns) -> None:
        if table == "heads" and step >= from_step:
            columns[name] = change(np.array(columns[name], dtype=float))

    return edit


def _one_head_off(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: values * np.array([1, 1, factor, 1])


def _event(name: str, value: Any) -> Any:
    def edit(table: str, step: int, columns: Columns) -> None:
        if table == "event":
            columns[name] = value

    return edit


def _keys_matter(table: str, step: int, columns: Columns) -> None:
    if table == "biases" and step == 50:
        columns["key_max"] = columns["query_max"] * 1e-3


SPOILT = {
    "sgd-keeps-beta": ("sgd", _head("beta", _one_head_off(1.03))),
    "sgd-decay-shrinks-beta": ("sgd_decay", _head("beta", _one_head_off(1.03))),
    "adamw-changes-beta": ("adamw", _head("beta", lambda beta: 0.2 + 0.01 * np.arange(4), 0)),
    "drift-as-predicted": ("sgd", _head("drift_bias", _one_head_off(1.3))),
    "sgd-share-is-rounding": ("sgd", _head("rho_bias", lambda share: share * 2, 0)),
    "sgd-share-below-isotropic": ("sgd", _head("rho", lambda share: share * 1e5, 0)),
    "adamw-share-near-isotropic": ("adamw", _head("rho", lambda share: share * 1e-3, 0)),
    "adamw-spreads-tau": ("adamw", _head("tau", lambda tau: 0.1 * np.linspace(-1, 1, 4), 0)),
    "sgd-keeps-tau": ("sgd", _head("tau", lambda tau: tau * 1.2)),
    "no-rank-loss": ("adamw", _head("mu", _one_head_off(1e-6))),
    "key-bias-gradients-vanish": ("sgd", _keys_matter),
    "rebalancing-makes-beta-zero": ("adamw_rebalanced", _event("beta_after", [[1e-8, 1e-3], [1e-8, 1e-8]])),
    "beta-grows-after-rebalancing": ("adamw_rebalanced", _head("beta", lambda beta: 1e-8 + 0 * beta)),
    "rebalancing-keeps-the-output": ("adamw_rebalanced", _event("output_change", 0.01)),
    "state-only-leaves-weights": ("adamw_state_only", _event("beta_after", [[0.2, 0.2], [0.2, 0.1]])),
}


@pytest.mark.parametrize("claim", DECIDES)
def test_a_run_that_contradicts_is_told_so(claim: str, tmp_path: Path) -> None:
    """The counter-example of each statement: the same run with one thing wrong."""
    case, edit = SPOILT[claim]
    found = verdicts(verify_run(load_one(write(tmp_path / "run", config(case), edit))))
    assert found[claim] is False


def test_a_short_run_decides_only_what_more_updates_cannot_change(tmp_path: Path) -> None:
    short = verdicts(verify_run(load_one(write(tmp_path / "sgd", config("sgd"), stop=101))))
    assert short["sgd-keeps-beta"] is None
    assert short["key-bias-gradients-vanish"] is True
    spoilt = write(tmp_path / "spoilt", config("sgd"), _head("beta", _one_head_off(1.1), 50), stop=101)
    assert verdicts(verify_run(load_one(spoilt)))["sgd-keeps-beta"] is False
    slow = write(tmp_path / "adamw", config("adamw"), _head("beta", lambda beta: 0.2 + 0 * beta, 0), stop=101)
    assert verdicts(verify_run(load_one(slow)))["adamw-changes-beta"] is None


def test_what_was_not_collected_is_not_decided(tmp_path: Path) -> None:
    def nothing(table: str, step: int, columns: Columns) -> None:
        if table in ("heads", "biases"):
            columns.clear()

    found = verify_run(load_one(write(tmp_path / "run", config("sgd"), nothing)))
    assert set(verdicts(found).values()) == {None}
    assert any("nothing was collected" in outcome.note for outcome in found)


def test_low_precision_says_nothing_about_vanishing_gradients(tmp_path: Path) -> None:
    found = verdicts(verify_run(load_one(write(tmp_path / "run", config("sgd", dtype="bfloat16"), _keys_matter))))
    assert found["key-bias-gradients-vanish"] is None


def test_augmented_rebalancing_is_judged_by_the_augmented_charge(tmp_path: Path) -> None:
    def augmented(table: str, step: int, columns: Columns) -> None:
        if table == "event":
            columns["beta_bias_before"], columns["beta_bias_after"] = columns["beta_before"], columns["beta_after"]
            columns["beta_after"] = columns["beta_before"]

    run = write(tmp_path / "run", config("adamw_rebalanced", rebalance__target="augmented"), augmented)
    assert verdicts(verify_run(load_one(run)))["rebalancing-makes-beta-zero"] is True


def sweep(tmp_path: Path, runs: list[tuple[dict[str, Any], float]]) -> list[Run]:
    for index, (settings, loss) in enumerate(runs):
        write(tmp_path / f"run{index}", settings, loss=loss)
    return load(tmp_path)


def paired(cost: float) -> list[tuple[dict[str, Any], float]]:
    losses = {1: 2.00, 2: 2.02, 3: 2.01}
    extra = {"adamw": 0.0, "adamw_state_only": 0.004, "adamw_rebalanced": 0.004 + cost}
    return [(config(case, seed=seed), losses[seed] + extra[case]) for case in extra for seed in losses]


def test_pairs_by_seed(tmp_path: Path) -> None:
    found = {outcome.claim.id: outcome for outcome in verify_sweep(sweep(tmp_path, paired(0.002)))}
    against = found["rebalancing-against-state-only"]
    assert against.holds is True
    assert against.measured == pytest.approx(0.2, rel=1e-3)  # 0.002 nats, deviation 0.01
    assert "+0.0020 nats over 3 seeds" in against.note
    assert found["rebalancing-against-adamw"].measured == pytest.approx(0.6, rel=1e-3)
    assert found["state-only-loss-like-adamw"].holds is True
    assert found["state-only-beta-like-adamw"].measured == pytest.approx(1)
    assert found["drift-grows-with-lr"].holds is None


def test_a_cost_beyond_the_seeds_fails(tmp_path: Path) -> None:
    found = verdicts(verify_sweep(sweep(tmp_path, paired(0.02))))
    assert found["rebalancing-against-state-only"] is False


def test_one_seed_decides_no_difference(tmp_path: Path) -> None:
    found = verdicts(verify_sweep(sweep(tmp_path, [one for one in paired(0.5) if one[0]["seed"] == 1])))
    assert found["rebalancing-against-state-only"] is None


def test_slope_of_drift(tmp_path: Path) -> None:
    runs = sweep(tmp_path, [(config("sgd", lr=lr), 2.0) for lr in (0.5, 0.25, 0.125, 0.0625)])
    found = next(outcome for outcome in verify_sweep(runs) if outcome.claim.id == "drift-grows-with-lr")
    assert found.holds is True
    assert found.measured == pytest.approx(2, abs=1e-5)
    assert "slope 2.00, 95 % 2.00 to 2.00, 4 runs" in found.note


def test_shares_come_in_the_papers_order(tmp_path: Path) -> None:
    runs = sweep(tmp_path, [(config(case), 2.0) for case in ("sgd", "sgd_decay", "adamw")])
    assert verdicts(verify_sweep(runs))["shares-in-order"] is True


def test_one_bad_run_of_a_sweep_speaks_for_all(tmp_path: Path) -> None:
    write(tmp_path / "good", config("sgd"))
    write(tmp_path / "bad", config("sgd", seed=2), _head("beta", _one_head_off(1.1)))
    found = next(o for o in verify_sweep(load(tmp_path)) if o.claim.id == "sgd-keeps-beta")
    assert found.holds is False
    assert found.note.startswith("2 runs; bad")


def test_the_interval_of_a_slope_covers_at_its_rate() -> None:
    rng, x, hits = np.random.default_rng(0), np.log([0.5, 0.25, 0.125, 0.0625]), 0
    for _ in range(2000):
        slope, half = line(x, 2 * x + 0.1 * rng.standard_normal(4))
        hits += abs(slope - 2) <= half
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)  # three deviations of a share of 0.95 over 2000
    assert len(STUDENT_95) == 10


def test_what_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="no run: there is no status.json"):
        load_one(tmp_path)


def test_statements_are_distinct() -> None:
    assert {claim.id for claim in run_claims()} == set(DECIDES)
