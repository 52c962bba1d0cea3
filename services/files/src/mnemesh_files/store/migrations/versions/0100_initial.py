"""The first schema, on which later revisions are based. No upgrade leads to it: an empty database gets the tables of
`store/tables.py`.
"""

revision = "0100"
down_revision = None
