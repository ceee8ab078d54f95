"""A min-max loss of one's own: cross-entropy in which the maximiser weighs up the group that fares worse."""

import torch


def loss(theta, w, x, y, s):
    """Of one record; theta is the logistic model's vector, w holds one extra weight a group."""
    score = torch.dot(x, theta[:-1]) + theta[-1]
    plain = torch.nn.functional.softplus(score) - y * score
    return (1.0 + torch.where(s == 0, w[0], w[1])) * plain
