#!/bin/bash
# A single-node Kubernetes: etcd, control plane, containerd, kubelet, kube-proxy, CoreDNS, and kube-router, which enforces
# network policies. As root; down.sh ends it. Pods have IPv4 addresses; services may have IPv6, too.
set -eu
. "$(dirname "$0")/rig.sh"
[ ! -e "$RIG/pids" ] || { echo "already up: $RIG/pids" >&2; exit 1; }
[ ! -e /run/netns/$NETWORK ] || { echo "the rig of another checkout is up: ip netns pids $NETWORK" >&2; exit 1; }
# down.sh removes these directories of containerd, CNI and kubelet.
for used in /run/containerd/s /var/lib/cni/results /var/lib/kubelet/device-plugins; do
    [ ! -e $used ] || { echo "another container runtime is here: $used" >&2; exit 1; }
done
mkdir -p "$RIG"/{log,pki,cni,containerd}
cd "$RIG"
touch pids

network() {
    ip netns add $NETWORK
    inside ip link set lo up
    inside ip link add node0 type veth peer name node1
    inside ip link set node1 up
    inside ip link set node0 up
    inside ip addr add $NODE_IP/24 dev node0
    inside ip -6 addr add $NODE_IP6/64 dev node0 nodad
    inside ip route add default dev node0 # addresses of services need a route
    inside ip -6 route add default dev node0
    inside sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.bridge.bridge-nf-call-iptables=1 \
        net.bridge.bridge-nf-call-ip6tables=1 net.ipv4.conf.all.route_localnet=1
}

# user NAME [GROUP]: a token and a kubeconfig, NAME.conf
user() {
    local token
    token=$(openssl rand -hex 16)
    echo "$token,$2,$2${3:+,\"$3\"}" >> pki/tokens.csv
    cat > "$1.conf" <<Y
apiVersion: v1
kind: Config
clusters: [{name: rig, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $RIG/pki/ca.crt}}]
users: [{name: user, user: {token: $token}}]
contexts: [{name: rig, context: {cluster: rig, user: user}}]
current-context: rig
Y
}

keys() {
    local names=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=rig-ca -keyout pki/ca.key -out pki/ca.crt 2> /dev/null
    openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout pki/api.key -out pki/api.csr 2> /dev/null
    echo "subjectAltName=$names,IP:127.0.0.1,IP:$NODE_IP,IP:10.96.0.1" > pki/names
    openssl x509 -req -in pki/api.csr -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial -days 30 -extfile pki/names \
        -out pki/api.crt 2> /dev/null
    openssl genrsa -out pki/accounts.key 2048 2> /dev/null
    openssl rsa -in pki/accounts.key -pubout -out pki/accounts.pub 2> /dev/null
    user admin admin system:masters
    user kubelet system:node:$NODE system:nodes
    user controller system:kube-controller-manager
    user scheduler system:kube-scheduler
    user proxy system:kube-proxy
    user policies policies system:masters
}

control_plane() {
    daemon etcd etcd --data-dir etcd --log-level warn --unsafe-no-fsync --listen-peer-urls http://127.0.0.1:2380 \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
    daemon apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address=$NODE_IP --secure-port=6443 \
        --tls-cert-file=pki/api.crt --tls-private-key-file=pki/api.key --client-ca-file=pki/ca.crt \
        --token-auth-file=pki/tokens.csv --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --service-account-key-file=pki/accounts.pub --service-account-signing-key-file=pki/accounts.key \
        --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=$SERVICES,$SERVICES6 \
        --kubelet-preferred-address-types=InternalIP --allow-privileged
    within 120 k get --raw /readyz
    daemon controller kube-controller-manager --kubeconfig=controller.conf --root-ca-file=pki/ca.crt \
        --service-account-private-key-file=pki/accounts.key --use-service-account-credentials --leader-elect=false \
        --allocate-node-cidrs --cluster-cidr=$PODS,$PODS6 --service-cluster-ip-range=$SERVICES,$SERVICES6
    daemon scheduler kube-scheduler --kubeconfig=scheduler.conf --leader-elect=false
}

# pod_network FILE SUBNET ROUTES: a bridge. Of several files containerd takes the first.
pod_network() {
    cat > "$1" <<Y
{"cniVersion": "0.4.0", "name": "rig", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$RIG/ipam", "ranges": [[{"subnet": "$2"}]], "routes": [{"dst": "$3"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
Y
}

container_runtime() {
    cat > containerd/config.toml <<Y
version = 2
root = "$RIG/containerd/root"
state = "$RIG/containerd/state"
[grpc]
  address = "$RIG/containerd/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true  # for a machine without CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$RIG/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
Y
    pod_network cni/10-ipv4.conflist $PODS 0.0.0.0/0
    pod_network ipv6.conflist $PODS6 ::/0
    daemon containerd containerd --config containerd/config.toml
    within 30 containers version
    for image in "$ROOT"/.cache/kubernetes/images/*.tar; do containers images import "$image" > /dev/null; done
}

node() {
    echo "nameserver 127.0.0.1" > resolv.conf
    cat > kubelet.yaml <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://$RIG/containerd/c.sock
resolvConf: $RIG/resolv.conf
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 500Mi, nodefs.available: 1Gi}
podLogsDir: $RIG/log/pods
Y
    cat > proxy.yaml <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $RIG/proxy.conf}
clusterCIDR: $PODS,$PODS6
hostnameOverride: $NODE
conntrack: {maxPerCore: 0}
Y
    cat > Corefile <<Y
.:53 {
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $KUBECONFIG
  }
  cache 5
}
Y
    daemon kubelet kubelet --config=kubelet.yaml --kubeconfig=kubelet.conf --root-dir="$RIG/kubelet" \
        --hostname-override=$NODE --node-ip=$NODE_IP,$NODE_IP6 --cert-dir="$RIG/kubelet-pki"
    daemon proxy kube-proxy --config=proxy.yaml
    daemon policies kube-router --run-router=false --run-service-proxy=false --run-firewall --kubeconfig=policies.conf \
        --hostname-override=$NODE --enable-ipv6 --service-cluster-ip-range=$SERVICES --service-cluster-ip-range=$SERVICES6
    daemon coredns coredns -conf Corefile
    within 60 k get node $NODE
}

# in_cluster NAMESPACE NAME PORT: a service that leads to a port of the node
in_cluster() {
    cat <<Y
apiVersion: v1
kind: Service
metadata: {name: $2, namespace: $1}
spec: {${4:+clusterIP: $4, }ports: [{name: p, port: $3, protocol: ${5:-TCP}}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: $2, namespace: $1, labels: {kubernetes.io/service-name: $2}}
addressType: IPv4
endpoints: [{addresses: [$NODE_IP]}]
ports: [{name: p, port: $3, protocol: ${5:-TCP}}]
---
Y
}

# Volumes are directories of the node.
objects() {
    in_cluster kube-system kube-dns 53 $DNS_IP UDP
    in_cluster kafka broker-0 9092
    in_cluster store clickhouse 8123
    cat <<Y
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
Y
    for number in $(seq 12); do
        mkdir -p volumes/$number
        cat <<Y
apiVersion: v1
kind: PersistentVolume
metadata: {name: rig-$number}
spec:
  capacity: {storage: 20Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: standard
  persistentVolumeReclaimPolicy: Retain
  local: {path: $RIG/volumes/$number}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [$NODE]}]}]}
---
Y
    done
}

network
keys
control_plane
container_runtime
node
for namespace in kafka store; do k create namespace $namespace > /dev/null; done
objects | k apply -f - > /dev/null
k wait --for=condition=Ready node/$NODE --timeout=120s > /dev/null
