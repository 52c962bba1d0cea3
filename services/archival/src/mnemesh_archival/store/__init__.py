"""The stores on SQLite and PostgreSQL.

Every method takes an organization, or an object that names one; rows of other organizations do not exist for it.
"""
