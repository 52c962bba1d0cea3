#!/bin/sh
# Creates the secrets of docker-compose.yml: the key that signs tokens, the key that encrypts stored secrets, and the database
# password; and the list of revoked tokens. Existing ones are kept.
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
        # The containers' user must be able to read it; on the host, the directory mode protects it.
        chmod 444 "deploy/secrets/$key"
        echo "mnemesh: created deploy/secrets/$key"
    fi
done
if [ ! -e deploy/secrets/auth_key.revoked ]; then
    : > deploy/secrets/auth_key.revoked
    chmod 644 deploy/secrets/auth_key.revoked
fi
if ! grep -qs '^MNEMESH_POSTGRES_PASSWORD=' .env; then
    echo "MNEMESH_POSTGRES_PASSWORD=$(random)" >> .env
    echo "mnemesh: added MNEMESH_POSTGRES_PASSWORD to .env"
fi
