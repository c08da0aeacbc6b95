#!/bin/sh
# Entry point of the image: `headroom` with its arguments, or a pod of Spark on Kubernetes.
# Spark starts its containers with the argument `driver` or `executor` and passes the rest in the environment (its
# BasicDriverFeatureStep and BasicExecutorFeatureStep set the variables).
set -eu

set_spark_home() {
    SPARK_HOME=${SPARK_HOME:-$(python3 -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')}
    export SPARK_HOME
}

# Java asks for the name of its user. One whose id the platform has chosen has none (OpenShift), and Spark does not start.
name_user() {
    id=$(id -u)
    if ! getent passwd "$id" > /dev/null; then
        NSS_WRAPPER_PASSWD=${TMPDIR:-/tmp}/headroom-passwd
        NSS_WRAPPER_GROUP=/etc/group
        HOME=${TMPDIR:-/tmp}
        LD_PRELOAD=libnss_wrapper.so${LD_PRELOAD:+:$LD_PRELOAD}
        echo "headroom:x:$id:$(id -g):headroom:$HOME:/usr/sbin/nologin" > "$NSS_WRAPPER_PASSWD"
        export NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP HOME LD_PRELOAD
    fi
}

case "${1:-}" in
driver)
    shift
    name_user
    set_spark_home
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS:?}" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        "$@"
    ;;
executor)
    name_user
    set_spark_home
    set --
    number=0
    while option=$(printenv "SPARK_JAVA_OPT_$number"); do
        set -- "$@" "$option"
        number=$((number + 1))
    done
    exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" \
        "-Xms${SPARK_EXECUTOR_MEMORY:?}" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "${SPARK_DRIVER_URL:?}" \
        --executor-id "${SPARK_EXECUTOR_ID:?}" \
        --cores "${SPARK_EXECUTOR_CORES:?}" \
        --app-id "${SPARK_APPLICATION_ID:?}" \
        --hostname "${SPARK_EXECUTOR_POD_IP:?}" \
        --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" \
        --podName "${SPARK_EXECUTOR_POD_NAME:?}"
    ;;
job | demo)
    name_user
    exec headroom "$@"
    ;;
*)
    exec headroom "$@"
    ;;
esac
