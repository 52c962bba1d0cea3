#!/bin/sh
# Checks that proto/ is compatible with the published version: the main branch or, on it, the previous commit.
# Argument: the buf command. AGAINST=<ref> selects another base. Without a git history the check is skipped.
set -eu

skip() {
    echo "mnemesh: no earlier contracts to compare with ($1)"
    exit 0
}

command -v git >/dev/null 2>&1 || skip "git is not installed"
git rev-parse --verify --quiet HEAD >/dev/null 2>&1 || skip "there is no history"

base=""
for ref in ${AGAINST:-} origin/main main HEAD~1; do
    commit=$(git rev-parse --verify --quiet "$ref^{commit}") || continue
    [ "$commit" = "$(git rev-parse HEAD)" ] && git diff --quiet HEAD -- proto && continue
    git cat-file -e "$commit:proto/mnemesh" 2>/dev/null || continue
    base=$commit
    break
done
[ -n "$base" ] || skip "no earlier commit contains contracts"

before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
git archive "$base" proto | tar -x -C "$before"
cp buf.yaml "$before"
"$1" breaking --against "$before"
echo "mnemesh: contracts are compatible with $(git rev-parse --short "$base")"
