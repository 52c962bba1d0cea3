"""The worker that parses files, embeds their passages and removes what was deleted."""
