#!/usr/bin/env bash
# Installs the programs that the tests start and that pip does not bring: as root by apt-get; else it says which.
set -euo pipefail

missing=()
command -v promtool >/dev/null || missing+=(prometheus)
java -version >/dev/null 2>&1 || missing+=(openjdk-17-jre-headless)
command -v chromium >/dev/null || missing+=(chromium fonts-liberation)  # the pages are tested in it
command -v strace >/dev/null || missing+=(strace)                       # power losses are simulated from its log
command -v cc >/dev/null || missing+=(gcc libc6-dev)                    # mypyc compiles C
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null && exit 0
fi
echo "tests that need them will fail: install ${missing[*]} (names of Debian's packages)"
