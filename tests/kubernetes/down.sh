#!/bin/bash
# Ends what up.sh started: its processes by id, then pods' processes, mounts, network namespaces and control groups.
# Says what is left, and fails if anything is.
set -u
. "$(dirname "$0")/rig.sh"
# up.sh makes the list before anything else, so that without it the rig that runs is one of another checkout.
[ -e "$RIG/pids" ] || exit 0
cd "$RIG"

# stop NAME: its process, unless the id belongs to another one by now, as after a reboot
stop() {
    while read -r pid name; do
        [ "$name" = "$1" ] && ip netns pids $NETWORK 2> /dev/null | grep -qx "$pid" || continue
        kill "$pid" && timeout 20 tail --pid="$pid" -f /dev/null || kill -9 "$pid"
    done < pids
}

delete_pods() {
    k delete statefulset,deployment,cronjob,job --all -A --grace-period=1 --timeout=60s
    k delete pod --all -A --force --grace-period=0 --timeout=60s
    sleep 3
}

stop_containers() {
    for task in $(containers task ls -q); do containers task kill -s 9 -a "$task"; done
    sleep 1
    for container in $(containers container ls -q); do
        containers task rm -f "$container"
        containers container rm "$container"
    done
}

shims() { pgrep -f "containerd-shim-runc-v2 .*$RIG/containerd/c.sock"; }
nothing_runs() { [ -z "$(ip netns pids $NETWORK)" ]; }
mounts() { grep -o " $RIG[^ ]*" /proc/mounts | sort -r; }

delete_pods > /dev/null 2>&1
stop kubelet
stop_containers > /dev/null 2>&1
for name in policies proxy coredns scheduler controller apiserver etcd containerd; do stop $name; done
shims | xargs -r kill
mounts | xargs -r -n1 umount -l
for pod in $(ip netns ls | grep -o '^cni-[^ ]*'); do ip netns del "$pod"; done
[ ! -e /run/netns/$NETWORK ] || { within 20 nothing_runs && ip netns del $NETWORK; }
find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} + 2> /dev/null
# what kubelet, CNI and shims leave elsewhere
find /var/log/containers -lname "$RIG/*" -delete 2> /dev/null
rm -rf /var/lib/cni/results /run/containerd/s /var/lib/kubelet/device-plugins
rmdir /var/log/containers /var/lib/cni /var/lib/kubelet /run/containerd/{runc/k8s.io,runc,} 2> /dev/null
left=
[ -z "$(shims)" ] || left+="shims "
[ -z "$(mounts)" ] || left+="mounts "
[ ! -e /run/netns/$NETWORK ] || left+="network, processes $(ip netns pids $NETWORK | tr '\n' ' ')"
[ -z "$(find /sys/fs/cgroup -type d -name kubepods)" ] || left+="control groups "
rm -rf host etcd kubelet kubelet-pki ipam volumes containerd cni pki ./*.conf
[ -z "$left" ] || { echo "left: $left"; exit 1; }
rm -f pids
