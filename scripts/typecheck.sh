#!/usr/bin/env bash
# mypy --strict over the package. The subpackages are folders beside `kvproof/`, so mypy looks at a tree of links in which they
# lie inside it. Usage: scripts/typecheck.sh [path of mypy]
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
mypy=$(realpath -s "${1:-.venv/bin/mypy}")
tree=.mypy_cache/tree
rm -rf "$tree"
mkdir -p "$tree/kvproof"
for path in kvproof/*; do
    ln -s "$root/$path" "$tree/kvproof/"
done
# [tool.setuptools.package-dir] says which folders they are.
for folder in $(sed -n 's/^"kvproof\.[a-z_]*" = "\([a-z_]*\)"$/\1/p' pyproject.toml); do
    ln -s "$root/$folder" "$tree/kvproof/$folder"
    folders="${folders:+$folders|}$folder"
done
cd "$tree"
"$mypy" --strict --config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache" -p kvproof \
    | sed -E "s#^kvproof/($folders)/#\1/#"
