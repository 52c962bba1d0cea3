"""The Protocols of the stores.

Every method takes an organization, or an object that names one; rows of other organizations do not exist for it.
"""
