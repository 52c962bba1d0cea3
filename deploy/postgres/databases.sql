-- Executed once by the PostgreSQL image when its volume is new: one database per service. The services create and migrate
-- their tables.
CREATE DATABASE mnemesh_orchestrator;
CREATE DATABASE mnemesh_blocks;
CREATE DATABASE mnemesh_recall;
CREATE DATABASE mnemesh_archival;
CREATE DATABASE mnemesh_tools;
CREATE DATABASE mnemesh_files;
