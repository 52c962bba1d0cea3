#!/bin/sh
# Makes what docker-compose.yml needs and nobody else may know: the key with which tokens are signed, the one that seals
# stored secrets, and the password of the database. What is there already is left alone.
set -eu
cd "$(dirname "$0")/.."

random() {
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

umask 077
mkdir -p deploy/secrets
chmod 700 deploy/secrets
for key in auth_key secrets_key; do
    if [ ! -e "deploy/secrets/$key" ]; then
        random > "deploy/secrets/$key"
        # The containers' own user must read it; on this machine the directory keeps others out.
        chmod 444 "deploy/secrets/$key"
        echo "mnemesh: made deploy/secrets/$key"
    fi
done
if ! grep -qs '^MNEMESH_POSTGRES_PASSWORD=' .env; then
    echo "MNEMESH_POSTGRES_PASSWORD=$(random)" >> .env
    echo "mnemesh: added MNEMESH_POSTGRES_PASSWORD to .env"
fi
