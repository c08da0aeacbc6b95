#!/bin/bash
# Kubernetes, CoreDNS, kube-router and helm from their Go modules into .cache/kubernetes/bin, once: ten minutes, 1 GB.
set -eu
. "$(dirname "$0")/rig.sh"
VERSION=1.34.4 # the last with cgroup v1
STAGED="api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap
    code-generator component-base component-helpers controller-manager cri-api cri-client csi-translation-lib
    dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy
    kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver sample-cli-plugin
    sample-controller"
mkdir -p "$BINARIES"

# in_module COMMAND...: in a new Go module, which is removed
in_module() (
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT
    cd "$directory"
    go mod init rig 2> /dev/null
    "$@"
)

# build NAME FLAGS IMPORT: a program of the module's requirements. It gets its name when it is complete.
build() {
    [ ! -x "$BINARIES/$1" ] || return 0
    echo "building $1"
    nice -n 10 go build -p 2 -mod=mod -ldflags "$2" -o "$1.new" "$3"
    mv "$1.new" "$BINARIES/$1"
}

# requires IMPORT... MODULE@VERSION: the program's module and what the program imports
requires() {
    local module=${*: -1}
    { printf '//go:build tools\n\npackage tools\n\nimport (\n'; printf '\t_ "%s"\n' "${@:1:$#-1}"; echo ")"; } > tools.go
    go get "$module"
    go mod tidy
}

kubernetes() {
    local programs="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl" missing=
    for name in $programs; do [ -x "$BINARIES/$name" ] || missing=1; done
    [ "$missing" ] || return 0
    for name in $STAGED; do
        go mod edit -replace "k8s.io/$name=k8s.io/$name@v0.${VERSION#1.}"
    done
    # shellcheck disable=SC2086
    requires $(printf 'k8s.io/kubernetes/cmd/%s ' $programs) "k8s.io/kubernetes@v$VERSION"
    # Without its version in it the API server is v0.0.0, and helm refuses the chart.
    local is=k8s.io/component-base/version
    for name in $programs; do
        build "$name" "-X $is.gitVersion=v$VERSION -X $is.gitMajor=1 -X $is.gitMinor=34 -X $is.gitTreeState=clean" \
            "k8s.io/kubernetes/cmd/$name"
    done
}

coredns() {
    [ ! -x "$BINARIES/coredns" ] || return 0
    cp "$ROOT/tests/kubernetes/coredns.go" main.go
    go get github.com/coredns/coredns@v1.15.0
    go mod tidy
    build coredns "" .
}

# program NAME IMPORT MODULE@VERSION
program() {
    [ ! -x "$BINARIES/$1" ] || return 0
    requires "$2" "$3"
    build "$1" "" "$2"
}

in_module kubernetes
in_module coredns
in_module program kube-router github.com/cloudnativelabs/kube-router/v2/cmd/kube-router github.com/cloudnativelabs/kube-router/v2@v2.1.0
in_module program helm helm.sh/helm/v3/cmd/helm helm.sh/helm/v3@v3.22.0
