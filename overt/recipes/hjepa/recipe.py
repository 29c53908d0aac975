from __future__ import annotations
def parameter_groups(model, no_decay=()):
    groups = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2
            groups.setdefault(decays, {"params": [], **({} if decays else {"weight_decay": 0.0})})["params"].append((name, parameter))
    return list(groups.values())
