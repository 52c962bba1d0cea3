-- Run once by the PostgreSQL image, when its volume is new: a database for each service. The tables are the services'
-- own to make and to migrate.
CREATE DATABASE engram_orchestrator;
CREATE DATABASE engram_blocks;
CREATE DATABASE engram_recall;
CREATE DATABASE engram_archival;
CREATE DATABASE engram_tools;
