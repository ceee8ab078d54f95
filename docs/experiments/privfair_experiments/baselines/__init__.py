"""Baselines without privacy that only the tables of MMD-fair FedAvg use; pyproject.toml names them as plug-ins."""
