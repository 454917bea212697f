"""What the swap planner would do if other things were asked for: a view with supposed demand, and its plan. Pure.

The same planner, costs and prices as in earnest; only what is asked for, and who may not leave, is replaced.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gateway.lateness import Demand
from gateway.residency import PlanSettings, Residency, SwapPlan, Tenant
from gateway.swap_actions import plan
from predictor.cost import SwapCosts


@dataclass(frozen=True, slots=True)
class Supposed:
    """What is supposed of a model's demand: `waiting` requests whose first token is late in `slack_s`, more at `rate_per_s`.
    None: as it is."""

    waiting: float | None = None
    rate_per_s: float | None = None
    slack_s: float | None = None


def what_if(
    view: Residency,
    supposed: Mapping[str, Supposed],
    pinned: Collection[str] | None,
    costs: SwapCosts,
    settings: PlanSettings,
) -> SwapPlan:
    """The plan for that demand. `pinned`: those who may not leave, in place of those of the view."""
    tenants = tuple(_tenant(tenant, supposed.get(tenant.name), pinned) for tenant in view.tenants)
    return plan(replace(view, tenants=tenants), costs, settings)


def _tenant(tenant: Tenant, supposed: Supposed | None, pinned: Collection[str] | None) -> Tenant:
    if pinned is not None:
        tenant = replace(tenant, pinned=tenant.name in pinned)
    return tenant if supposed is None else replace(tenant, demand=_demand(tenant.demand, supposed))


def _demand(now: Demand, supposed: Supposed) -> Demand:
    slack_s = now.slack_s if supposed.slack_s is None else supposed.slack_s
    rate_per_s = now.rate_per_s if supposed.rate_per_s is None else supposed.rate_per_s
    if supposed.waiting is None:
        waiting, oldest_s = now.waiting, now.oldest_s
        if supposed.slack_s is not None and waiting:
            waiting = ((now.count, slack_s),)
    else:
        waiting, oldest_s = ((supposed.waiting, slack_s),) if supposed.waiting else (), 0.0
    return Demand(waiting, rate_per_s, max(slack_s, 0.0), oldest_s)
