"""`account`, `calibrate` and `theorems` as a user meets them: reference points, refusals, JSON contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.command_line import privfair

STEFFLE = """calibrate steffle --epsilon 1 --delta 1e-5 --silo-size 7500 --batch-size 256 --rounds 1172
    --minority-fraction 0.4 --lipschitz 1 --w-radius 1"""
FEDFDP = """calibrate fedfdp --epsilon 3.5 --delta 1e-5 --sampling-rate 0.05 --rounds 268 --clip 1 --loss-clip 1
    --loss-noise-ratio 2.5"""
FPFL = """calibrate fpfl --epsilon 2 --delta 6.142506142506142e-05 --users 16280 --cohort 200 --rounds 1000
    --clip 1"""
MMD = """calibrate mmd-fedavg --epsilon 4 --delta 1e-5 --group-size 10000 --samples-per-group 100 --rounds 20
    --mechanism gaussian --users 1000 --cohort 50 --update-clip 1"""
GAUSSIAN = "calibrate gaussian --epsilon 1 --delta 1e-5 --sampling-rate 0.01 --rounds 1000"
PAY_ONCE = "calibrate pay-once --epsilon 1 --delta 1e-5 --groups 2"


def upper(*words: object) -> float:
    return float(privfair("account", *words, "--delta", "1e-5", "--json").json()["epsilon"]["upper"])


@pytest.mark.parametrize(
    ("words", "epsilon", "digits"),
    [
        ("--noise-multiplier 4 --sampling poisson --sampling-rate 0.01 --rounds 10000", 0.947, 3),
        ("--noise-multiplier 2 --sampling poisson --sampling-rate 0.1 --rounds 10", 0.798, 3),
        ("--noise-multiplier 2 --sampling poisson --sampling-rate 0.1 --rounds 10 --relation replace-one", 1.253, 3),
        ("--noise-multiplier 2 --sampling poisson --sampling-rate 0.05 --rounds 268", 1.818, 3),
        ("--noise-multiplier 2 --noise-multiplier 5 --sampling poisson --sampling-rate 0.05 --rounds 268", 2.009, 3),
        ("--noise-multiplier 3.965 --sampling poisson --sampling-rate 256/7500 --rounds 1172", 1.145, 3),
        (
            """--noise-multiplier 3.965 --sampling shuffled --sampling-rate 256/7500 --rounds 1172
            --relation replace-attribute""",
            7.59,
            2,
        ),
        (
            """--noise-multiplier 3.965 --sampling poisson --sampling-rate 256/7500 --rounds 1172
            --relation replace-attribute --batch revealed""",
            8.10,
            2,
        ),
    ],
)
def test_account_reproduces_the_reference_points(words: str, epsilon: float, digits: int) -> None:
    assert round(upper(*words.split()), digits) == pytest.approx(epsilon, abs=10**-digits / 2)


def test_account_gives_both_sides_for_fixed_cohorts() -> None:
    words = "account --noise-multiplier 1.41463 --sampling fixed --sampling-rate 0.01 --rounds 1000 --delta 1e-5"
    answer = privfair(*words.split(), "--relation", "replace-one", "--json").json()["epsilon"]
    assert answer["lower"] == pytest.approx(4.48, abs=0.005)
    assert answer["upper"] == pytest.approx(5.13, abs=0.005)


def test_account_prices_fixed_cohorts_when_a_user_is_added_or_removed() -> None:
    words = "account --noise-multiplier 1.41463 --sampling-rate 0.01 --rounds 1000 --delta 1e-5 --json"
    fixed = privfair(*words.split(), "--sampling", "fixed").json()["epsilon"]
    halved = words.replace("1.41463", "0.707315")
    poisson = privfair(*halved.split(), "--sampling", "poisson").json()["epsilon"]
    assert fixed == pytest.approx(poisson, rel=1e-9)
    assert fixed["upper"] == pytest.approx(4.48, abs=0.005)


def test_account_never_takes_a_rounded_share_for_more_batches_per_epoch_than_there_are() -> None:
    words = "account --noise-multiplier 1 --sampling shuffled --rounds 4 --delta 1e-5 --relation replace-attribute"
    outcome = privfair(*words.split(), "--sampling-rate", "0.3333")
    assert outcome.code == 2
    assert "--sampling-rate" in outcome.err
    assert "1/3" in outcome.err
    third = privfair(*words.split(), "--sampling-rate", "1/3", "--json").json()["epsilon"]
    assert third["upper"] == pytest.approx(6.573, abs=1e-3)  # two epochs; four batches per epoch would be one: 4.377
    half = privfair(*words.split(), "--sampling-rate", "0.5", "--json").json()["epsilon"]
    assert half == privfair(*words.split(), "--sampling-rate", "1/2", "--json").json()["epsilon"]


def test_account_does_not_claim_that_a_begun_epoch_costs_as_much_as_a_whole_one() -> None:
    words = "account --noise-multiplier 1 --sampling-rate 1/1000 --rounds 1 --delta 1e-5 --relation replace-one --json"
    begun = privfair(*words.split(), "--sampling", "shuffled").json()["epsilon"]
    same = privfair(*words.split(), "--sampling", "fixed", "--batch", "revealed").json()["epsilon"]
    assert begun["lower"] == pytest.approx(same["lower"], rel=1e-9)
    assert same["upper"] <= begun["upper"]
    assert begun["upper"] == pytest.approx(9.997, abs=1e-3)


def test_account_reaches_tiny_deltas() -> None:
    words = "account --noise-multiplier 1.41463 --sampling poisson --sampling-rate 0.01 --rounds 1000 --json --delta"
    for delta, epsilon in (("1e-14", 2.10425), ("1e-30", 4.37476)):
        answer = privfair(*words.split(), delta).json()["epsilon"]
        assert answer["lower"] <= epsilon * (1 + 1e-5)
        assert answer["upper"] >= epsilon * (1 - 1e-5)
        assert answer["upper"] - answer["lower"] < 1e-3


def test_account_orders_the_accountants() -> None:
    words = "account --noise-multiplier 2 --sampling poisson --sampling-rate 0.05 --rounds 268 --delta 1e-5"
    rows = privfair(*words.split(), "--accountant", "all", "--json").json()
    bounds = {row["accountant"]: row["epsilon"] for row in rows if "epsilon" in row}
    assert bounds["renyi"]["upper"] >= bounds["pld"]["upper"] >= bounds["certified"]["lower"]
    assert bounds["moments"]["upper"] >= bounds["certified"]["upper"]


@pytest.mark.parametrize("words", [STEFFLE, FEDFDP, FPFL, MMD, GAUSSIAN, PAY_ONCE], ids=lambda words: words[1])
def test_every_algorithm_calibrates_within_its_promise(words: list[str]) -> None:
    outcome = privfair(*words.split(), "--json")
    assert outcome.code == 0, outcome.err
    budget = outcome.json()
    assert {
        "algorithm",
        "epsilon",
        "delta",
        "certified",
        "rounds",
        "releases",
        "joint_noise_multiplier",
        "assumptions",
    } <= set(budget)
    assert budget["certified"]["lower"] <= budget["certified"]["upper"] <= budget["epsilon"]
    assert budget["assumptions"]
    for release in budget["releases"]:
        assert {"name", "sensitivity", "noise_multiplier", "sigma"} <= set(release)
        if release["sigma"] is not None:
            assert release["sigma"] == pytest.approx(release["sensitivity"] * release["noise_multiplier"])


def test_calibrated_noise_is_the_known_optimum() -> None:
    assert privfair(*GAUSSIAN.split(), "--json").json()["releases"][0]["sigma"] == pytest.approx(1.4146194, rel=2e-5)
    assert privfair(*FEDFDP.split(), "--json").json()["releases"][0]["noise_multiplier"] == pytest.approx(
        1.3794367, rel=2e-5
    )
    assert privfair(*STEFFLE.split(), "--json").json()["joint_noise_multiplier"] == pytest.approx(23.59, abs=0.01)
    poisson = privfair(*FPFL.split(), "--sampling", "poisson", "--json").json()
    assert poisson["joint_noise_multiplier"] == pytest.approx(0.997, abs=0.001)


def test_explain_prices_the_alternatives() -> None:
    rows = privfair(*FEDFDP.split(), "--explain", "--json").json()["explanation"]
    assert rows[0]["ratio"] == 1
    assert len(rows) > 2
    assert any(not row["offered"] for row in rows)


def test_account_solves_for_what_is_left_out() -> None:
    words = ("account", "--delta", "1e-5", "--json")
    rate = ("--sampling-rate", "0.01")
    cost = privfair(*words, *rate, "--noise-multiplier", 1.4146194, "--rounds", 1000).json()
    noise = privfair(*words, *rate, "--epsilon", 1, "--rounds", 1000).json()
    rounds = privfair(*words, *rate, "--epsilon", 1, "--noise-multiplier", 1.4147).json()
    share = privfair(*words, "--epsilon", 1, "--noise-multiplier", 1.4147, "--rounds", 1000).json()
    assert [found["kind"] for found in (cost, noise, rounds, share)] == [
        *("epsilon", "noise-multiplier", "rounds", "sampling-rate")
    ]
    assert set(cost) == {"epsilon", "accountant", "kind"}
    assert noise["noise_multiplier"] == pytest.approx(1.4146194, rel=2e-5)
    assert rounds["rounds"] == 1000
    assert share["sampling_rate"] == pytest.approx(0.01, rel=1e-3)
    for found in (noise, rounds, share):
        assert 0.99 < found["epsilon"]["upper"] <= 1
    said = privfair(*words[:-1], *rate, "--epsilon", 1, "--rounds", 1000).out
    assert said.startswith("noise multiplier = 1.41")
    one = privfair(*words, "--epsilon", 1).json()
    assert one["noise_multiplier"] == pytest.approx(3.7306, abs=1e-3)  # a single Gaussian release


def test_account_draws_what_it_priced(tmp_path: Path) -> None:
    figure = tmp_path / "rounds.svg"
    words = ("--noise-multiplier", 2, "--rounds", 8, "--sampling-rate", 0.1, "--delta", 1e-5)
    assert privfair("account", *words, "--plot", figure, "--json").json()["plot"] == str(figure)
    assert "<svg" in figure.read_text()


def test_plan_file_and_flags_give_the_same_budget(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'algorithm = "gaussian"\n[target]\nepsilon = 1\ndelta = 1e-5\n[privacy]\nsampling-rate = 0.01\nrounds = 1000\n'
    )
    assert privfair("calibrate", plan, "--json").json() == privfair(*GAUSSIAN.split(), "--json").json()
    plan.write_text('algorithm = "gaussian"\n[privacy]\nsampling-rte = 0.01\nrounds = 1000\n')
    outcome = privfair("calibrate", plan, "--epsilon", 1, "--delta", "1e-5")
    assert outcome.code == 2
    assert "sampling-rate" in outcome.err


def test_plot_writes_a_figure(tmp_path: Path) -> None:
    figure = tmp_path / "budget.svg"
    assert privfair(*GAUSSIAN.split(), "--plot", figure).code == 0
    assert "<svg" in figure.read_text()
    assert privfair(*GAUSSIAN.split(), "--plot", tmp_path / "budget.doc").code == 2


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("calibrate gaussian --epsilon 0 --delta 1e-5 --sampling-rate 0.01 --rounds 10", "epsilon"),
        ("calibrate gaussian --epsilon -1 --delta 1e-5 --sampling-rate 0.01 --rounds 10", "epsilon"),
        ("calibrate gaussian --epsilon nan --delta 1e-5 --sampling-rate 0.01 --rounds 10", "epsilon"),
        ("calibrate gaussian --epsilon 1 --delta 0 --sampling-rate 0.01 --rounds 10", "delta"),
        ("calibrate gaussian --epsilon 1 --delta 1 --sampling-rate 0.01 --rounds 10", "delta"),
        ("calibrate gaussian --epsilon 1 --delta 1e-5 --sampling-rate 1.5 --rounds 10", "sampling"),
        ("calibrate gaussian --epsilon 1 --delta 1e-5 --sampling-rate 0.1 --rounds 0", "rounds"),
        ("calibrate gaussian --delta 1e-5 --sampling-rate 0.1 --rounds 10", "epsilon"),
        ("calibrate gaussian --epsilon 1 --delta 1e-5 --rounds 10", "sampling-rate"),
        ("calibrate nobody --epsilon 1 --delta 1e-5", "nobody"),
        (STEFFLE.replace("--batch-size 256", "--batch-size 9999"), "batch-size"),
        (STEFFLE.replace("--minority-fraction 0.4", "--minority-fraction 0.6"), "minority-fraction"),
        (STEFFLE + " --sampling full", "batch-size"),
        (GAUSSIAN + " --noise-multiplier 2", "--noise-multiplier"),
        (GAUSSIAN + " --out budget.json", "--key"),
        ("account --noise-multiplier -1 --delta 1e-5", "noise multiplier"),
        ("account --noise-multiplier 1 --delta 2", "--delta"),
        ("account --noise-multiplier 1 --delta 1e-5 --sampling poisson", "--sampling-rate"),
        ("account --noise-multiplier 1 --delta 1e-5 --sampling poisson --sampling-rate x", "--sampling-rate"),
        ("account --noise-multiplier 1 --delta 1e-5 --sampling-rate 0.1 --sampling full", "--sampling-rate"),
        ("account --delta 1e-5", "--epsilon"),
        ("account --epsilon 1 --noise-multiplier 1 --rounds 2 --sampling-rate 0.1 --delta 1e-5", "--epsilon"),
        ("account --epsilon 1 --tries 3 --delta 1e-5", "--tries"),
        ("account --epsilon 1e-9 --noise-multiplier 1 --delta 1e-5", "--noise-multiplier"),
        ("account --noise-multiplier 1 --delta 1e-5 --sampling fixed --sampling-rate 1/1", "fixed-size"),
        (
            "account --noise-multiplier 1 --delta 1e-5 --sampling fixed --sampling-rate 0.1 --batch revealed",
            "fixed-size",
        ),
        (
            """account --noise-multiplier 1 --delta 1e-5 --sampling shuffled --sampling-rate 0.1 --batch secret
            --relation replace-one""",
            "shuffled",
        ),
        (
            """account --noise-multiplier 1 --delta 1e-5 --sampling poisson --sampling-rate 0.1 --batch secret
            --relation replace-attribute""",
            "clip the whole contribution",
        ),
        ("theorems check steffle.theorem-33", "steffle.theorem-3.3"),
        ("theorems check steffle.theorem-3.3 --set epsilonn=2", "epsilon"),
        ("theorems check steffle.theorem-3.3 --set epsilon", "name=value"),
        ("theorems check steffle.theorem-3.3 --set epsilon=-2", "epsilon"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words: str, names: str) -> None:
    outcome = privfair(*words.split())
    assert outcome.code == 2
    assert names in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


def check(id: str, *settings: str) -> dict[str, object]:
    answer: dict[str, object] = privfair(
        "theorems", "check", id, *(word for setting in settings for word in ("--set", setting)), "--json"
    ).json()
    return answer


def test_theorem_table_lists_every_claim() -> None:
    rows = privfair("theorems", "--json").json()
    verdicts = {row["id"]: row["verdict"] for row in rows}
    assert verdicts["steffle.theorem-3.3"] == "fails"
    assert verdicts["steffle.lemma-B.1.W"] == "fails"
    assert verdicts["fedfdp.equation-13"] == "fails"
    assert verdicts["fpfl.algorithm-1"] == "fails"
    assert verdicts["mmd.corollary-5.3"] == "fails"
    assert len(verdicts) == 24
    assert {"id", "claimed_epsilon", "true_epsilon", "verdict", "preconditions", "why"} <= set(rows[0])


def test_theorem_3_3_findings() -> None:
    assert check("steffle.theorem-3.3")["true_epsilon"] == pytest.approx(7.59, abs=0.005)
    secret = check("steffle.theorem-3.3", "batch=secret", "sampling=poisson")
    assert secret["verdict"] == "fails"
    assert secret["true_epsilon"] == pytest.approx(1.145, abs=0.0005)
    revealed = check("steffle.theorem-3.3", "sampling=poisson")
    assert revealed["true_epsilon"] == pytest.approx(8.10, abs=0.005)
    nine = check("steffle.theorem-3.3", "epsilon=9")
    assert nine["verdict"] == "not applicable"
    assert any("1931" in str(rule) for rule in nine["preconditions"])  # type: ignore[union-attr]


@pytest.mark.slow
def test_fpfl_findings() -> None:
    assert check("fpfl.algorithm-1")["verdict"] == "fails"
    assert check("fpfl.algorithm-1", "rounds=250")["verdict"] == "fails"
    own = check("fpfl.algorithm-1", "rounds=250", "cohort=1000")
    assert own["verdict"] == "holds"
    assert own["true_epsilon"] == pytest.approx(1.9605, abs=1e-3)
    assert check("fpfl.algorithm-1", "rounds=250", "cohort=1000", "relation=replace-one")["verdict"] == "undecided"


def test_fedfdp_literal_reading_is_true_but_useless() -> None:
    literal = check("fedfdp.theorem-2")
    assert literal["verdict"] == "holds"
    assert literal["claimed_epsilon"] == pytest.approx(29.7, abs=0.05)
