"""The migration of a Letta database: a reader of its tables, records of its agents, and the calls that store them."""
