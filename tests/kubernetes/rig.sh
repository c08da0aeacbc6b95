# Sourced by the other scripts, from the root of the checkout. Everything runs in one network namespace of its own, so
# that neither the machine's network nor its packet filter changes.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BINARIES=$ROOT/.cache/kubernetes/bin
RIG=$ROOT/build/kubernetes
NETWORK=headroom-rig NODE=rig
NODE_IP=10.99.0.1 PODS=10.244.0.0/24 SERVICES=10.96.0.0/16 DNS_IP=10.96.0.10
NODE_IP6=fd00:99::1 PODS6=fd00:244::/64 SERVICES6=fd00:96::/112
export KUBECONFIG=$RIG/admin.conf HELM_CACHE_HOME=$RIG/helm HELM_CONFIG_HOME=$RIG/helm HELM_DATA_HOME=$RIG/helm
export PATH=$BINARIES:$PATH

inside() { nsenter --net=/run/netns/$NETWORK "$@"; }
k() { inside "$BINARIES/kubectl" "$@"; }
containers() { inside ctr -a "$RIG/containerd/c.sock" -n k8s.io "$@"; }

# daemon NAME COMMAND...: in the background; its process id goes into $RIG/pids
daemon() {
    local name=$1
    shift
    setsid nsenter --net=/run/netns/$NETWORK "$@" >> "$RIG/log/$name.log" 2>&1 < /dev/null &
    echo "$! $name" >> "$RIG/pids"
}

# within SECONDS COMMAND...: repeats it until it succeeds
within() {
    local seconds=$1
    shift
    for _ in $(seq "$seconds"); do
        if "$@" > /dev/null 2>&1; then return 0; fi
        sleep 1
    done
    echo "not within $seconds s: $*" >&2
    return 1
}
