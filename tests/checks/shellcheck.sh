# Every shell script passes shellcheck.
set -eu
cd "$(dirname "$0")/../.."
command -v shellcheck >/dev/null 2>&1 || {
    echo "shellcheck is not installed"
    exit 77
}
shellcheck .ci/run scripts/*.sh
shellcheck --shell=sh tests/checks/*.sh
