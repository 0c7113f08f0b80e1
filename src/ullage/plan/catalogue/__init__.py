"""Well-known models and devices, as data: dimensions and figures as published, each with its source."""

from ullage.plan.catalogue.devices import Device, device_names, find_device, similar_devices
from ullage.plan.catalogue.models import find_model, model_names, similar_models

__all__ = [
    "Device",
    "device_names",
    "find_device",
    "find_model",
    "model_names",
    "similar_devices",
    "similar_models",
]
