"""Everything of an agent as files: settings, tools, core memory, archives and conversations, beside its trace files."""
