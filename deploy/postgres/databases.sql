-- Run once by the PostgreSQL image, when its volume is new: a database for each service. The tables are the services'
-- own to make and to migrate.
CREATE DATABASE mnemesh_orchestrator;
CREATE DATABASE mnemesh_blocks;
CREATE DATABASE mnemesh_recall;
CREATE DATABASE mnemesh_archival;
CREATE DATABASE mnemesh_tools;
