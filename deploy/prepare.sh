#!/bin/sh
# Makes what docker-compose.yml needs and nobody else may know: the key with which tokens are signed, and the password
# of the database. What is there already is left alone.
set -eu
cd "$(dirname "$0")/.."

random() {
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

umask 077
mkdir -p deploy/secrets
chmod 700 deploy/secrets
if [ ! -e deploy/secrets/auth_key ]; then
    random > deploy/secrets/auth_key
    # The containers' own user must read it; on this machine the directory keeps others out.
    chmod 444 deploy/secrets/auth_key
    echo "engram: made deploy/secrets/auth_key"
fi
if ! grep -qs '^ENGRAM_POSTGRES_PASSWORD=' .env; then
    echo "ENGRAM_POSTGRES_PASSWORD=$(random)" >> .env
    echo "engram: added ENGRAM_POSTGRES_PASSWORD to .env"
fi
