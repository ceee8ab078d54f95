"""The plans `privfair demo` runs: real data, sized so that training and the audit take about a minute."""

from __future__ import annotations

_DATA = """
[data]
dataset = "credit-card"
seed = 0

[data.partition]
kind = "equal"
silos = 3
"""

CALIBRATIONS = (
    """steffle --epsilon 1 --delta 1e-5 --silo-size 7500 --batch-size 256 --rounds 1172 --minority-fraction 0.396
    --lipschitz 1 --w-radius 1 --explain""",
    """fedfdp --epsilon 2 --delta 1e-5 --sampling-rate 0.05 --rounds 268 --clip 1 --loss-clip 1
    --loss-noise-ratio 2.5""",
    "fpfl --epsilon 2 --delta 6e-5 --users 16280 --cohort 200 --rounds 1000 --clip 1 --sampling poisson",
    """mmd-fedavg --epsilon 4 --delta 1e-5 --group-size 10000 --samples-per-group 100 --rounds 50
    --mechanism gaussian --users 1000 --cohort 50 --update-clip 1""",
    "pay-once --epsilon 1 --delta 1e-5 --groups 2",
)
"""One calibration an algorithm, shown before the run."""

_STEFFLE = """algorithm = "steffle"

[target]
epsilon = 1.0
delta = 1e-5

[privacy]
silo-size = 7500
{privacy}minority-fraction = 0.39
{data}
[training]
group-frequencies = [0.396, 0.604]      # public: men and women in the data's own documentation
{training}"""

PLANS = {
    "steffle": "# SteFFLe on few full batches: what a silo sends protects one record's sensitive attribute.\n"
    + _STEFFLE.format(
        privacy='sampling = "full"\nrounds = 60\nlipschitz = 0.5\nw-radius = 0.5\n',
        data=_DATA,
        training="measure-every = 10\n",
    ),
    "pay-once": f"""# Pay once: randomised response on the attribute, then training for free.
algorithm = "pay-once"

[target]
epsilon = 1.0
delta = 1e-5

[privacy]
groups = 2
rounds = 100
{_DATA}
[training]
fairness = 20.0
measure-every = 10
""",
    "gaussian": f"""# DP-SGD in every silo: one record is protected.
algorithm = "gaussian"

[target]
epsilon = 2.0
delta = 1e-5

[privacy]
sampling-rate = 0.05
rounds = 300
clip = 1.0
{_DATA}
[training]
learning-rate = 0.5
measure-every = 10
""",
    "fedfdp": f"""# FedFDP: clients with a larger loss count more; gradient and loss of every record are protected.
algorithm = "fedfdp"

[target]
epsilon = 2.0
delta = 1e-5

[privacy]
sampling-rate = 0.05
rounds = 200
clip = 1.0
loss-clip = 2.0
loss-noise-ratio = 2.5
{_DATA}
[training]
learning-rate = 0.5
fairness = 0.5
measure-every = 10
""",
    "fpfl": """# FPFL on Adult handed to users, two records each: all data of one user are protected.
algorithm = "fpfl"

[target]
epsilon = 2.0
delta = 6e-5

[privacy]
users = 16958
cohort = 1000
rounds = 100
clip = 2.0
sampling = "poisson"

[data]
dataset = "adult"
seed = 0

[data.users]
kind = "poisson"
mean = 2.0

[training]
learning-rate = 0.8
notion = "false-negative-rate"
damping = 1.0
choice = "smoothed"
smoothing = 0.03
measure-every = 10
""",
    "mmd-fedavg": """# MMD-fair FedAvg on Adult with 200 clients: noisy predictions of both groups, noisy updates.
algorithm = "mmd-fedavg"

[target]
epsilon = 3.0
delta = 1e-5

[privacy]
group-size = 10000              # both groups have more records
samples-per-group = 100
rounds = 15
users = 200
cohort = 20
update-clip = 0.3
update-noise-ratio = 2.0
histogram-noise-ratio = 20.0    # the groups' sizes are paid for once

[data]
dataset = "adult"
seed = 0

[data.partition]
kind = "equal"
silos = 200

[training]
criterion = "statistical-parity"
fairness = 5.0
kernel = "gaussian"
kernel-width = 1.0
local-rate = 2.0
measure-every = 5
""",
}

AS_PRINTED = "# SteFFLe with the settings and the noise of its paper.\n" + _STEFFLE.format(
    privacy='batch-size = 256\nrounds = 1172\nlipschitz = 1.0\nw-radius = 1.0\nsampling = "shuffled"\n',
    data=_DATA,
    training='learning-rate = 0.25\nmomentum = 0.0\nw-step = 1e-5\nw-center = "origin"\nmeasure-every = 100\n',
)

RERUNS = {name: 1 if name == "steffle" else 2 for name in PLANS}
"""Effort of each demo's audit: a rerun of SteFFLe has 22,500 coins already and takes the longest."""

CONFIDENCE = {name: 0.999 if name == "pay-once" else 0.95 for name in PLANS}
"""Pay-once costs exactly what it promises, and its coins are read by the best decoder there is: at 95% one honest run
in twenty would be called violated."""
