#!/bin/sh
# Makes build/python/env: an environment with torch and transformers from the package index, and the wheel in it.
# WHEEL=file installs that wheel; otherwise one without the CUDA library is built. NEWEST=1 takes the newest versions
# instead of those of tests/torch/requirements.txt. Gigabytes, the first time.
set -eu
cd "$(dirname "$0")/.."
folder=build/python
case ${NEWEST:-} in
'') name=pinned strip='' upgrade='' ;;
*) name=newest strip='s/==.*//' upgrade=--upgrade ;;
esac
mkdir -p "$folder/$name"
if [ -z "${WHEEL:-}" ]; then
    scripts/wheel.sh --out "$folder/wheel" -C cmake.define.FS_CUDA=OFF
    WHEEL=$(echo "$folder"/wheel/*.whl)
fi
sed -e '/^#/d' -e "$strip" tests/torch/requirements.txt >"$folder/$name.txt"
[ -x "$folder/$name/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder/$name"
pip() { "$folder/$name/bin/python" -m pip --disable-pip-version-check "$@"; }
# shellcheck disable=SC2086 # no option is no word
pip install --quiet $upgrade -r "$folder/$name.txt"
pip install --quiet --force-reinstall --no-deps "$WHEEL"
pip check
ln -sfn "$name" "$folder/env"
realpath "$WHEEL" >"$folder/$name/wheel.txt"
