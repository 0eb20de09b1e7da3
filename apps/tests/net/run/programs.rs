//! Programs of Debian, unchanged, as servers and as clients.

use super::{CLIENT, SERVER, started};
use crate::common::wire::linerate_in;
use crate::interfaces::shared::connect_kernels;
use crate::links::{Link, assert_nothing_left};
use linerate_harness::program::{Program, run};
use linerate_harness::rerun::{in_namespaces, skip};
use linerate_harness::tests;
use std::path::Path;
use std::process::Command;

/// Server, and a script of clients.
pub struct Case {
    /// Programs that the case runs, with their Debian packages.
    pub needs: &'static [(&'static str, &'static str)],
    /// Files of the directory in which all programs run.
    pub files: &'static [(&'static str, &'static str)],
    /// Script before the server starts.
    pub prepare: &'static str,
    /// Script that becomes the server, whose address is 10.9.0.2.
    pub server: &'static str,
    /// Port on which it listens, or 0 if the clients wait for it.
    pub port: u16,
    /// Script whose success is the success of the test. `$RUN PROGRAM` runs a client on the stack, `$LINERATE COMMAND
    /// $NET` one of `linerate`.
    pub clients: &'static str,
}

/// A file of 100 MB, `www/big`.
const BIG: &str = "mkdir -p www && head -c 100000000 /dev/urandom >www/big";

const MEMCACHED: Case = Case {
    needs: &[("memcached", "memcached"), ("memccapable", "libmemcached-tools")],
    files: &[],
    prepare: "",
    server: "exec memcached -u root -l 10.9.0.2 -t 4",
    port: 11211,
    clients: "$LINERATE kv load --protocol memcached $NET --connect 10.9.0.2:11211 --keys 1000 --duration 1s --verify
              $RUN memccapable -h 10.9.0.2 -p 11211 | tail -n 1 | grep 'All tests passed'
              $RUN memcaslap -s 10.9.0.2:11211 -T 2 -c 16 -t 1s -v 1.0 >out
              grep -x 'verify_failed: 0' out
              grep -x 'verify_misses: 0' out",
};

/// The clients change the master by a socket of the kernel. The replica is at their end of the link.
const REDIS: Case = Case {
    needs: &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")],
    files: &[("redis.conf", "protected-mode no\nsave ''\nenable-debug-command local\nrepl-diskless-sync-delay 0\n")],
    prepare: "mkdir replica",
    server: "exec redis-server redis.conf --bind 10.9.0.2 --unixsocket $PWD/master.sock",
    port: 6379,
    clients: "master='redis-cli -s master.sock' replica='redis-cli -s replica.sock'
              await() { timeout 20 sh -c \"until $1 | grep -q $2; do sleep 0.1; done\"; }
              $LINERATE kv load $NET --connect 10.9.0.2:6379 --connections 32 --keys 1000 --duration 1s --verify
              $RUN redis-benchmark -h 10.9.0.2 -q -n 10000 -P 4 -t set,get,lpush,lrange_100,mset >&2
              $master bgsave
              await \"$master info persistence\" rdb_bgsave_in_progress:0
              $master info persistence | grep rdb_last_bgsave_status:ok
              $RUN redis-server redis.conf --port 6380 --dir replica --unixsocket $PWD/replica.sock \
                  --replicaof 10.9.0.2 6379 >&2 &
              trap \"kill $!\" EXIT
              await \"$replica info replication\" master_link_status:up
              test $(printf 'set key value\nwait 1 10000\n' | $master | tail -n 1) = 1
              test $($master debug digest) = $($replica debug digest)
              $replica shutdown nosave
              trap - EXIT
              wait",
};

const NGINX: Case = Case {
    needs: &[("nginx", "nginx-light"), ("curl", "curl"), ("wget", "wget"), ("ab", "apache2-utils"), ("wrk", "wrk")],
    files: &[(
        "nginx.conf",
        "daemon off; master_process off; pid nginx.pid; error_log stderr warn;
         events { worker_connections 512; }
         http {
             access_log off; sendfile on; client_body_temp_path 1; proxy_temp_path 2; fastcgi_temp_path 3;
             uwsgi_temp_path 4; scgi_temp_path 5;
             server { listen 10.9.0.2:8000; root www; location /name { return 200 nginx; } }
         }",
    )],
    prepare: BIG,
    server: "exec nginx -p . -c nginx.conf",
    port: 8000,
    clients: "$RUN curl -sSo got http://10.9.0.2:8000/big
              cmp got www/big
              $RUN wget -qO got http://10.9.0.2:8000/big
              cmp got www/big
              test $($RUN curl -sS http://10.9.0.2:8000/name) = nginx
              $RUN ab -q -k -n 5000 -c 16 http://10.9.0.2:8000/name | grep -E '^Failed requests: +0$'
              ! $RUN wrk -t 2 -c 16 -d 1 http://10.9.0.2:8000/name | grep -E 'Socket errors|Non-2xx'",
};

const NGINX_1_GB: Case = Case {
    prepare: "mkdir -p www && head -c 1000000000 /dev/urandom >www/big",
    clients: "$RUN curl -sS http://10.9.0.2:8000/big | cmp - www/big",
    ..NGINX
};

/// nginx is a program of the kernel, which haproxy reaches by a socket of AF_UNIX.
const HAPROXY: Case = Case {
    needs: &[("nginx", "nginx-light"), ("haproxy", "haproxy"), ("curl", "curl")],
    files: &[
        (
            "nginx.conf",
            "pid nginx.pid; error_log stderr warn; worker_processes 1;
             events { worker_connections 512; }
             http {
                 access_log off; client_body_temp_path 1; proxy_temp_path 2; fastcgi_temp_path 3; uwsgi_temp_path 4;
                 scgi_temp_path 5;
                 server { listen unix:backend.sock; root www; }
             }",
        ),
        (
            "haproxy.cfg",
            "defaults\n mode http\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n\
             listen www\n bind 10.9.0.2:8000\n server nginx unix@backend.sock\n",
        ),
    ],
    prepare: "mkdir -p www && chmod 755 . www && head -c 100000000 /dev/urandom >www/big",
    server: "env -u LD_PRELOAD nginx -p . -c $PWD/nginx.conf && exec haproxy -db -f haproxy.cfg",
    port: 8000,
    clients: "trap 'kill $(cat nginx.pid)' EXIT
              $RUN curl -sSo got http://10.9.0.2:8000/big
              cmp got www/big",
};

const IPERF3: Case = Case {
    needs: &[("iperf3", "iperf3")],
    files: &[],
    prepare: "",
    server: "exec iperf3 -s -B 10.9.0.2",
    port: 5201,
    clients: "$RUN iperf3 -c 10.9.0.2 -P 8 -t 1
              sleep 0.2
              $RUN iperf3 -c 10.9.0.2 -P 8 -t 1 -R
              sleep 0.2
              $RUN iperf3 -c 10.9.0.2 -u -b 100M -t 1
              sleep 0.2
              $RUN iperf3 -c 10.9.0.2 -u -b 100M -t 1 -R",
};

const PYTHON: Case = Case {
    needs: &[("/usr/bin/python3", "python3"), ("curl", "curl")],
    files: &[],
    prepare: BIG,
    server: "exec /usr/bin/python3 -m http.server --bind 10.9.0.2 --directory www 8000",
    port: 8000,
    clients: "$RUN curl -sSo got http://10.9.0.2:8000/big
              cmp got www/big
              $RUN /usr/bin/python3 -c '
import urllib.request
assert urllib.request.urlopen(\"http://10.9.0.2:8000/big\").read() == open(\"www/big\", \"rb\").read()'",
};

const NODE: Case = Case {
    needs: &[("node", "nodejs")],
    files: &[
        (
            "server.js",
            "require('http').createServer((request, response) => request.pipe(response)).listen(8000, '10.9.0.2')",
        ),
        (
            "client.js",
            "const sent = require('crypto').randomBytes(10000000), received = []
             const request = require('http').request({host: '10.9.0.2', port: 8000, method: 'POST'}, response => {
                 response.on('data', data => received.push(data))
                 response.on('end', () => process.exit(Buffer.concat(received).equals(sent) ? 0 : 1))
             })
             request.end(sent)",
        ),
    ],
    prepare: "",
    server: "exec node server.js",
    port: 8000,
    clients: "$RUN node client.js",
};

/// The example of this package that runs on tokio.
const TOKIO: Case = Case {
    needs: &[("socat", "socat")],
    files: &[],
    prepare: "head -c 10000000 /dev/urandom >sent",
    server: "exec $EXAMPLES/tokio_echo 10.9.0.2:8000",
    port: 8000,
    clients: "$RUN socat -t 10 - TCP:10.9.0.2:8000 <sent >got
              cmp got sent",
};

/// The server is a child of socat, which carries its bytes. The client verifies the server's key, and is not logged in.
const SSH: Case = Case {
    needs: &[("ssh", "openssh-client"), ("socat", "socat"), ("dropbear", "dropbear-bin")],
    files: &[],
    prepare: "dropbearkey -t ed25519 -f key | sed -n 's/^ssh-ed25519 /10.9.0.2 &/p' >known",
    server: "exec socat TCP4-LISTEN:22,bind=10.9.0.2 EXEC:'dropbear -i -r key'",
    port: 22,
    clients: "$RUN ssh -v -F none -o UserKnownHostsFile=known -o StrictHostKeyChecking=yes -o BatchMode=yes \
                  -i none 10.9.0.2 true 2>log || true
              cat log >&2
              grep 'Host .10.9.0.2. is known and matches' log
              grep 'Permission denied' log",
};

/// Postgres serves in a process for each connection, and therefore on the kernel; haproxy and pgbench are on the stack.
const POSTGRES: Case = Case {
    needs: &[("pgbench", "postgresql"), ("haproxy", "haproxy"), ("runuser", "util-linux")],
    files: &[(
        "haproxy.cfg",
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n\
         listen postgres\n bind 10.9.0.2:5432\n server postgres unix@data/.s.PGSQL.5432\n",
    )],
    prepare: "mkdir data && chmod 755 . && chown nobody data && cd data
              PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
              runuser -u nobody -- initdb -D . -A trust -U test --no-sync >/dev/null
              runuser -u nobody -- pg_ctl -D . -l log -w -o \"-c listen_addresses= -k $PWD\" start >/dev/null",
    server: "exec haproxy -db -f haproxy.cfg",
    port: 5432,
    clients: "trap 'kill $(head -n 1 data/postmaster.pid)' EXIT
              $RUN pgbench -h 10.9.0.2 -U test -i -q postgres
              $RUN pgbench -h 10.9.0.2 -U test -c 8 -j 2 -T 2 postgres | grep 'failed transactions: 0 '",
};

/// Returns a shell in `directory` with the variables of scripts.
pub fn shell(script: &str, directory: &Path) -> Command {
    let mut shell = Command::new("sh");
    let linerate = env!("CARGO_BIN_EXE_linerate");
    let examples = Path::new(linerate).with_file_name("examples");
    shell.args(["-ec", script]).current_dir(directory).env("LINERATE", linerate).env("EXAMPLES", examples);
    shell
}

#[track_caller]
pub fn assert_succeeds(script: Command) {
    let ended = run(script);
    assert!(ended.status.success(), "{ended:?}");
}

/// Prepares the directory of a case. Returns false if a program is missing.
fn prepare(case: &Case, directory: &Path) -> bool {
    let is_example = case.server.contains("$EXAMPLES");
    let example = Path::new(env!("CARGO_BIN_EXE_linerate")).with_file_name("examples/tokio_echo");
    if is_example && !example.exists() {
        skip("needs cargo build --profile test -p linerate-apps --examples");
        return false;
    }
    for (program, package) in case.needs {
        if !Command::new("which").arg(program).output().unwrap().status.success() {
            skip(&format!("needs {program}: apt-get install {package}"));
            return false;
        }
    }
    for (name, content) in case.files {
        std::fs::write(directory.join(name), content).unwrap();
    }
    assert_succeeds(shell(case.prepare, directory));
    true
}

/// Runs the server at one end of a link and the clients at the other one.
pub fn serves(case: Case) {
    let link = Link::vhost();
    if !prepare(&case, link.directory()) {
        return;
    }
    let mut server = started(&link.serve, SERVER, "sh -ec");
    server.arg(case.server).current_dir(link.directory()).env("RUST_LOG", "info");
    server.env("EXAMPLES", Path::new(env!("CARGO_BIN_EXE_linerate")).with_file_name("examples"));
    let mut server = Program::start(server);
    // A daemon has no standard error.
    if case.port != 0 {
        server.wait_for_log(&format!("listens on {SERVER}:{}", case.port));
    }
    let mut clients = shell(case.clients, link.directory());
    let net = format!("--via {} --ip {CLIENT}/24 --idle wait", link.load);
    clients.env("RUN", format!("{} run {net} --", env!("CARGO_BIN_EXE_linerate"))).env("NET", net);
    assert_succeeds(clients);
    let pid = server.pid();
    server.stop();
    assert_nothing_left(pid);
}

tests! {
    redis_serves_saves_and_replicates => serves(REDIS);
    memcached_has_four_threads_and_all_commands => serves(MEMCACHED);
    nginx_serves_files => serves(NGINX);
    haproxy_connects_the_stack_with_the_kernel => serves(HAPROXY);
    iperf3_transfers_both_ways => serves(IPERF3);
    python_serves_and_downloads => serves(PYTHON);
    node_serves_and_sends => serves(NODE);
    tokio_serves => serves(TOKIO);
    ssh_verifies_a_server => serves(SSH);
    #[ignore = "1 GB takes seconds: ./run test --all"]
    nginx_sends_1_gb => serves(NGINX_1_GB);
    #[ignore = "a cluster takes seconds: ./run test --all"]
    pgbench_has_no_failed_transaction => serves(POSTGRES);
}

#[test]
fn nginx_serves_the_kernel_and_loopback_at_shared_addresses() {
    let directory = tempfile::tempdir().unwrap();
    if !prepare(&NGINX, directory.path()) {
        return;
    }
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        assert_succeeds(shell("sed -i s/10.9.0.2:// nginx.conf", directory.path()));
        let mut server = linerate_in(namespace, "run --via af_xdp:lr1,share --idle wait -- sh -c");
        server.arg(NGINX.server).current_dir(directory.path()).env("RUST_LOG", "info");
        let mut server = Program::start(server);
        server.wait_for_log("listens on 0.0.0.0:8000");
        let clients = format!(
            "curl -sSo got http://10.9.0.4:8000/big
             cmp got www/big
             test $(ip netns exec {namespace} curl -sS http://127.0.0.1:8000/name) = nginx"
        );
        assert_succeeds(shell(&clients, directory.path()));
        // SIGKILL leaves no program on the interface, and no file.
        let pid = server.pid();
        server.kill();
        assert_nothing_left(pid);
        let clients = format!("! ip -n {namespace} link show lr1 | grep xdp && ! curl -sS http://10.9.0.4:8000/name");
        assert_succeeds(shell(&clients, directory.path()));
    });
}
