"""Values, settings, resources and messages of Letta, and the same of the contracts."""
