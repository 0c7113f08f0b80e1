"""A deployment worked out before it is made: what a model needs on given devices with a named engine, and what fits."""

from ullage.plan.deployment.options import PlanOptions
from ullage.plan.deployment.planned_model import PlannedModel, load_model
from ullage.plan.deployment.planner import DeploymentPlan, plan_deployment

__all__ = ["DeploymentPlan", "PlanOptions", "PlannedModel", "load_model", "plan_deployment"]
