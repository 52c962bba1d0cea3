"""Raw traces and tool interactions: an agent's messages as what it lived through."""
