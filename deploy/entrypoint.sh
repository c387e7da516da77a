#!/bin/sh
# What the image runs. Any word that is none of these is a command of precede.
#   driver, executor   the two words with which Spark starts its pods on Kubernetes
#   service COMMAND    precede for a manager that starts again whatever ends, such as a Deployment
#   alive              whether the process in this container is stuck, for startup and liveness probes
#   drain              waits until the gateway in this container has published almost all that it keeps
set -eu

WRONG_USE=2 # precede's exit status for settings or flags that cannot be; started again, it would say the same
TAKEN_OVER=3 # its exit status when another job took over; started again, it would take the topics back
KEPT_MAX=1000 # records that a gateway publishes in the seconds that it takes to end
mark=${PRECEDE_ENDED_MARK:-/tmp/ended-for-good}

# Runs a command to its end, hands on the request to stop, and leaves the exit status in `status`.
watch() {
    child=
    stopping=
    trap 'stopping=yes; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM INT
    "$@" &
    child=$!
    [ -z "$stopping" ] || kill -TERM "$child" 2>/dev/null || true # it came before there was a child
    status=0
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do # a signal ends `wait` before the command ends
        status=0
        wait "$child" || status=$?
    done
}

run_driver() {
    watch "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    # Spark's operator starts again only what has failed.
    [ "$status" -ne "$TAKEN_OVER" ] || exit 0
    exit "$status"
}

run_executor() {
    classes="${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*${HADOOP_CONF_DIR:+:$HADOOP_CONF_DIR}${SPARK_CONF_DIR:+:$SPARK_CONF_DIR}"
    # Java's options come as SPARK_JAVA_OPT_0, _1 and so on; one may hold blanks, so each becomes an argument of its own.
    number=0
    set --
    while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
        set -- "$@" "$option"
        number=$((number + 1))
    done
    exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
}

run_service() {
    rm -f "$mark"
    watch precede "$@"
    case $status in
    "$WRONG_USE") why="The settings or flags cannot be, so this container stays without a job. Change them, and start a new one." ;;
    "$TAKEN_OVER") why="Another job took over, so this container stays without one. Delete its pod if it shall take the topics back." ;;
    *) exit "$status" ;;
    esac
    trap 'kill "$!" 2>/dev/null || true; exit 0' TERM INT
    echo "$why" >&2
    : > "$mark"
    while :; do
        sleep 3600 >/dev/null 2>&1 &
        wait "$!" || true
    done
}

is_alive() {
    [ ! -e "$mark" ] || exit 0 # the job ended for good, and that is as it should be
    exec python -c 'from urllib.request import urlopen; urlopen("http://127.0.0.1:9464/live", timeout=8)'
}

# How many records the gateway keeps that the log lacks; nothing where it does not say.
kept() {
    python -c 'from urllib.request import urlopen
for line in urlopen("http://127.0.0.1:9464/metrics", timeout=8).read().decode().splitlines():
    if line.startswith("precede_gateway_kept_records "):
        print(int(float(line.split()[1])))'
}

drain() {
    while count=$(kept) && [ "${count:-0}" -gt "$KEPT_MAX" ]; do
        sleep 1
    done
}

word=${1:---help}
[ $# -eq 0 ] || shift
case $word in
driver) run_driver "$@" ;;
executor) run_executor ;;
service) run_service "$@" ;;
alive) is_alive ;;
drain) drain ;;
*) exec precede "$word" "$@" ;;
esac
