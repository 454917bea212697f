"""For all tests: one example of a property may take as long as a busy machine needs, and so may making examples up."""

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
