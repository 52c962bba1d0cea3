#!/bin/sh
# Runs a program that Maven distributes, such as protoc. Maven writes it to target/tools at the first call.
# Usage: maven_tool.sh <group>:<artifact>:<version> [arguments of the program]
set -eu
IFS=: read -r group artifact version <<EOF
$1
EOF
shift
case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) platform=linux-x86_64 ;;
    Linux-aarch64) platform=linux-aarch_64 ;;
    Darwin-x86_64) platform=osx-x86_64 ;;
    Darwin-arm64) platform=osx-aarch_64 ;;
    *) echo "maven_tool.sh: no $artifact for $(uname -s) on $(uname -m)" >&2 && exit 1 ;;
esac
directory="$(cd "$(dirname "$0")" && pwd)/target/tools"
program="$directory/$artifact-$version-$platform.exe"
if [ ! -f "$program" ]; then
    mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy "-DoutputDirectory=$directory" \
        "-Dartifact=$group:$artifact:$version:exe:$platform" >&2
fi
[ -x "$program" ] || chmod +x "$program"
exec "$program" "$@"
