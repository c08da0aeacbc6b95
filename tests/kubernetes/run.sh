#!/bin/bash
# Builds what is missing, starts the rig, runs the checks in its network, and takes it down.
#   run.sh [CHECK ...]    as root; PYTHON: with the project's environment; KEEP=1 leaves the rig up
set -eu
. "$(dirname "$0")/rig.sh"
cd "$ROOT"
PYTHON=${PYTHON:-python}
PACKAGES="etcd-server containerd runc containernetworking-plugins iptables busybox-static buildah mmdebstrap"
missing=
for package in $PACKAGES; do dpkg -s "$package" > /dev/null 2>&1 || missing+=" $package"; done
[ -z "$missing" ] || { echo "needed: apt-get install$missing" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "needed: root, for network namespaces, mounts and control groups" >&2; exit 2; }

took() { echo "$1: ok: $(( SECONDS - began )) s${2:-}"; }

tests/kubernetes/build.sh
"$PYTHON" -m tests.kubernetes.images
"$PYTHON" -c 'from headroom.demo.jars import find_java, kafka_libs; kafka_libs(find_java())' # the rig has no way out
began=$SECONDS
status=0
[ -e /run/netns/$NETWORK ] || tests/kubernetes/down.sh # of a machine that was restarted since
if [ ! -e "$RIG/pids" ]; then
    [ "${KEEP:-}" ] || trap 'tests/kubernetes/down.sh' EXIT
    tests/kubernetes/up.sh
    took up ", Kubernetes $(k version -o json | grep -m2 gitVersion | tail -1 | cut -d'"' -f4), one node"
fi
inside "$PYTHON" -m tests.kubernetes "$@" || status=$?
[ ! "${KEEP:-}" ] || exit $status
trap - EXIT
began=$SECONDS
if tests/kubernetes/down.sh; then took down ", nothing is left"; else status=1; fi
exit $status
