#!/bin/bash
# NBD servers side by side: memlane's (memory volume) against nbdkit (memory) and qemu-storage-daemon (a file in /dev/shm),
# by fio's nbd engine; all of them in turns in each round. All volumes are full of noise.
#
#   cargo build --release -p memlane-block --example nbd_mem
#   bench/nbd.sh [ROUNDS] [SECONDS]        NBD_MEM=path/of/nbd_mem
#
# Columns: I/Os per second (median of the rounds, and best), the server's CPU seconds per million I/Os (median). Then the
# ratio of our median to the best peer's. On a machine that is busy with other things, look at the CPU seconds.
set -eu
rounds=${1:-3} seconds=${2:-2}
here=$(cd "$(dirname "$0")/.." && pwd)
nbd_mem=${NBD_MEM:-${CARGO_TARGET_DIR:-$here/target}/release/examples/nbd_mem}
dir=$(mktemp -d /dev/shm/nbd-bench-XXXXXX)
pids=()
cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap cleanup EXIT
size=128

# A free port each.
base=$((20000 + $$ % 20000))
mkfifo "$dir/hold"
"$nbd_mem" $size "unix:$dir/memlane.sock" "127.0.0.1:$base" <"$dir/hold" >/dev/null & pids+=($!); memlane=$!
exec 9>"$dir/hold"
nbdkit -f -U "$dir/nbdkit.sock" memory size=${size}M & pids+=($!); nbdkit_u=$!
nbdkit -f -i 127.0.0.1 -p $((base + 1)) memory size=${size}M & pids+=($!); nbdkit_t=$!
head -c ${size}M /dev/urandom >"$dir/noise"
qsd() {
    cp "$dir/noise" "$dir/qsd-$2"
    qemu-storage-daemon --blockdev "driver=file,node-name=n,filename=$dir/qsd-$2" \
        --nbd-server "$1" --export type=nbd,id=e,node-name=n,name=,writable=on & pids+=($!)
}
qsd "addr.type=unix,addr.path=$dir/qsd.sock" u; qsd_u=$!
qsd "addr.type=inet,addr.host=127.0.0.1,addr.port=$((base + 2))" t; qsd_t=$!
sleep 1

uri() { # server transport
    case $1-$2 in
        *-unix) echo "nbd+unix:///?socket=$dir/$1.sock" ;;
        memlane-tcp) echo "nbd://127.0.0.1:$base" ;;
        nbdkit-tcp) echo "nbd://127.0.0.1:$((base + 1))" ;;
        qsd-tcp) echo "nbd://127.0.0.1:$((base + 2))" ;;
    esac
}
pid_of() {
    case $1-$2 in
        memlane-*) echo $memlane ;;
        nbdkit-unix) echo $nbdkit_u ;; nbdkit-tcp) echo $nbdkit_t ;;
        qsd-unix) echo $qsd_u ;; qsd-tcp) echo $qsd_t ;;
    esac
}
for server in memlane nbdkit; do
    for via in unix tcp; do nbdcopy "$dir/noise" "$(uri $server $via)"; done
done
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

loads=("randread 4k 1" "randread 4k 32" "randwrite 4k 1" "randwrite 4k 32" "read 1m 1" "read 1m 4" "write 1m 4")
printf '%-5s %-16s %-8s %10s %10s %12s\n' via load server iops best cpu_s/M_io
for via in unix tcp; do
    for load in "${loads[@]}"; do
        read -r rw bs depth <<<"$load"
        for _ in $(seq "$rounds"); do
            for server in memlane nbdkit qsd; do
                pid=$(pid_of $server $via); before=$(ticks "$pid")
                fio --name=b --ioengine=nbd "--uri=$(uri $server $via)" --rw="$rw" --bs="$bs" --iodepth="$depth" \
                    --size=${size}m --time_based --runtime="$seconds" --output-format=json >"$dir/out" 2>/dev/null
                after=$(ticks "$pid")
                python3 - "$dir/out" "$((after - before))" >>"$dir/$via-$rw-$bs-$depth-$server" <<'P'
import json, os, sys
text = open(sys.argv[1]).read()
job = json.loads(text[text.index("{"):])["jobs"][0]
n = job["read"]["total_ios"] + job["write"]["total_ios"]
print(job["read"]["iops"] + job["write"]["iops"], int(sys.argv[2]) / os.sysconf("SC_CLK_TCK") / max(n, 1) * 1e6)
P
            done
        done
        best=0 ours=0
        for server in memlane nbdkit qsd; do
            file=$dir/$via-$rw-$bs-$depth-$server
            iops=$(cut -d' ' -f1 "$file" | median) cpu=$(cut -d' ' -f2 "$file" | median)
            top=$(cut -d' ' -f1 "$file" | sort -g | tail -1)
            printf '%-5s %-16s %-8s %10.0f %10.0f %12.2f\n' $via "$rw-$bs-$depth" $server "$iops" "$top" "$cpu"
            if [ $server = memlane ]; then ours=$iops; else best=$(echo "$best $iops" | tr ' ' '\n' | sort -g | tail -1); fi
        done
        echo "      ratio to the best peer: $(awk "BEGIN { printf \"%.2f\", $ours / $best }")"
    done
done
