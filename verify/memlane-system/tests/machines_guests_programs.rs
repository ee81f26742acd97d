//! Stock programs in guests that share an ivshmem device, with each other and with programs of the host: redis, nginx, iperf3 and
//! PostgreSQL. What arrives has the same hash as by TCP alone, and some of it goes by the lane.
//!
//! `./dev test-kernels` runs all stories. Those with the host need root, for a TAP device.
#![cfg(target_arch = "x86_64")]

mod guests;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use guests::computers::{Computer, Local, MODES, Service, ring_bytes};
use guests::{Host, LARGE, Neighbours, PATIENCE, all_extents_are_free, extents_in_use};
use memlane_fixtures::guest::Guest;
use memlane_system::blocks::must;
use memlane_system::harness::TempDir;
use memlane_system::real::iperf3::bytes_of;
use memlane_system::real::{blob, program, script, sha256_of_bytes, sha256_of_file};

/// Bytes by the lane that are no accident.
const SOME: u64 = 100_000;
/// Bytes of the file `value`.
const VALUE: usize = 4 << 20;
/// Bytes of the file `page`.
const PAGE: usize = 6000;

/// Both ends of a story: where the server runs, and where its clients do.
type Ends<'a> = [&'a mut dyn Computer; 2];

/// The files that both ends of a story have in `$opt`.
struct Files {
    folder: TempDir,
    value: Vec<u8>,
}

impl Files {
    fn new(test: &str) -> Files {
        let folder = TempDir::new(test);
        let put = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).expect("a file");
        };
        let value = blob(31, VALUE);
        put("value", &value);
        put("page", &blob(32, PAGE));
        let compare = std::fs::read(script("compare.lua")).expect("wrk's script");
        put("compare.lua", &compare);
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), readable).expect("our folder");
        Files { folder, value }
    }

    /// Puts them into a guest, with programs of this machine.
    fn fit(&self, guest: Guest, programs: &[&str]) -> Guest {
        let mut guest = guest;
        for entry in std::fs::read_dir(self.folder.path()).expect("our folder") {
            let entry = entry.expect("a file");
            let name = entry.file_name().to_string_lossy().into_owned();
            guest = guest.file(&entry.path(), &format!("/opt/{name}"));
        }
        for name in programs {
            let place = format!("/bin/{name}");
            let fitted = guest.program(&program(name), &place);
            guest = fitted.expect("programs of this machine");
        }
        guest.memory(MEMORY)
    }

    /// The hash of `value`, as often as that, one after the other.
    fn hash(&self, times: usize) -> String {
        sha256_of_bytes(&self.value.repeat(times))
    }
}

/// MiB of a guest: the programs are in it twice while it boots.
const MEMORY: u32 = 640;

/// Tells a story in two guests.
fn between_two_guests(test: &str, programs: &[&str], story: impl FnOnce(Ends<'_>, &Files)) {
    let files = Files::new(test);
    let Some(two) = Neighbours::with(test, LARGE, &|guest| files.fit(guest, programs)) else {
        return;
    };
    let mut server = two.boot_server();
    let mut client = two.boot_client();
    story([&mut server, &mut client], &files);
    all_extents_are_free(&two.stage.region);
}

/// Who runs the server, where a guest and the host are the ends.
#[derive(PartialEq)]
enum Serves {
    Guest,
    Host,
}

/// Tells a story in a guest and on the host.
fn with_the_host(
    test: &str,
    programs: &[&str],
    serves: Serves,
    story: impl FnOnce(Ends<'_>, &Files),
) {
    let files = Files::new(test);
    let Some(host) = Host::with(test, LARGE, &|guest| files.fit(guest, programs)) else {
        return;
    };
    let mut machine = host.boot();
    let mut local = Local::new(&host, files.folder.path());
    match serves {
        Serves::Guest => story([&mut machine, &mut local], &files),
        Serves::Host => story([&mut local, &mut machine], &files),
    }
    drop(local);
    all_extents_are_free(&host.stage.region);
}

/// Does something until the service has sent and taken bytes by the lane; once, if it is not under memlane.
fn until_the_lane_has_carried(
    service: &Service,
    under: &str,
    [server, client]: &mut Ends<'_>,
    mut does: impl FnMut(&mut dyn Computer),
) {
    let since = Instant::now();
    loop {
        does(*client);
        let carried = service.by_lane(*server);
        if under.is_empty() {
            assert_eq!(carried, 0, "it is not under memlane");
            return;
        }
        if carried > SOME {
            return;
        }
        let mut log = || service.log(*server);
        assert!(since.elapsed() < PATIENCE, "{carried} bytes\n{}", log());
    }
}

const REDIS: &[&str] = &["redis-server", "redis-cli", "redis-benchmark"];

fn redis(mut ends: Ends<'_>, files: &Files) {
    for (n, under) in MODES.into_iter().enumerate() {
        let (at, port) = (ends[0].address(), 7100 + u16::try_from(n).expect("few"));
        let command = format!(
            "redis-server --bind {at} --port {port} --save '' --protected-mode no --dir $work"
        );
        let service = Service::start(ends[0], under, ("redis-server", port), &command);
        let cli = format!("{under} redis-cli -h {at} -p {port}");
        let set = ends[1].shell(&format!("{cli} -x SET value <$opt/value"));
        assert_eq!(set, "OK\n");
        // redis-cli ends each copy with a new line.
        let mut copies = files.value.clone();
        copies.push(b'\n');
        let expected = sha256_of_bytes(&copies.repeat(5));
        until_the_lane_has_carried(&service, under, &mut ends, |client| {
            let got = client.shell(&format!("{cli} --raw -r 5 GET value | sha256sum"));
            assert_eq!(got, format!("{expected}  -\n"));
        });
        let load = "-q -t set,get -c 8 -n 2000 -d 1000 -r 50";
        let said = ends[1].shell(&format!(
            "{under} redis-benchmark -h {at} -p {port} {load} | tr '\\r' '\\n' | grep 'per second'"
        ));
        assert!(said.contains("SET: ") && said.contains("GET: "), "{said}");
        let errors = ends[1].shell(&format!("{cli} INFO errorstats"));
        assert!(!errors.contains("errorstat_"), "{errors}");
        service.ends_by(ends[0], "TERM");
    }
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn redis_gives_back_values_from_guest_to_guest() {
    between_two_guests("redis-guests", REDIS, redis);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn redis_in_a_guest_gives_back_values_to_its_host() {
    with_the_host("redis-guest-host", REDIS, Serves::Guest, redis);
}

const NGINX: &[&str] = &["nginx", "curl", "wrk"];

/// Starts nginx with `$opt` as its site.
fn nginx(on: &mut dyn Computer, under: &str, port: u16) -> Service {
    let at = on.address();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths = paths
        .map(|name| format!("{name}_temp_path {name};"))
        .concat();
    on.shell(&format!(
        "echo \"user nobody nogroup; daemon off; worker_processes 1; pid $work/nginx.pid; error_log stderr error; \
         events {{ worker_connections 128; }} \
         http {{ access_log off; sendfile on; keepalive_requests 1000000; {paths} \
         server {{ listen {at}:{port}; root $opt; }} }}\" >$work/nginx.conf"
    ));
    let command = "nginx -e stderr -p $work -c $work/nginx.conf";
    Service::start(on, under, ("nginx", port), command)
}

fn web(mut ends: Ends<'_>, files: &Files) {
    for (n, under) in MODES.into_iter().enumerate() {
        let port = 7200 + u16::try_from(n).expect("few");
        let service = nginx(ends[0], under, port);
        let url = format!("http://{}:{port}", ends[0].address());
        until_the_lane_has_carried(&service, under, &mut ends, |client| {
            let value = format!("{url}/value ").repeat(4);
            let curl = format!("{under} curl -q -sS --fail --noproxy '*' {value} | sha256sum");
            assert_eq!(client.shell(&curl), format!("{}  -\n", files.hash(4)));
        });
        let wrk = "wrk -t 1 -c 8 -d 2s --timeout 60s -s $opt/compare.lua";
        let said = ends[1].shell(&format!("{under} {wrk} {url}/page -- $opt/page"));
        let [checked, wrong, errors] = compared(&said);
        assert!(checked > 8, "{said}");
        assert_eq!([wrong, errors], [0, 0]);
        service.ends_by(ends[0], "QUIT");
    }
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn nginx_serves_curl_and_wrk_from_guest_to_guest() {
    between_two_guests("nginx-guests", NGINX, web);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn nginx_on_the_host_serves_curl_and_wrk_in_a_guest() {
    with_the_host("nginx-host-guest", NGINX, Serves::Host, web);
}

/// Bytes that iperf3 sends each time.
const MOVED: u64 = 16 << 20;

/// iperf3 3.12 sends other bytes than those of its file when the kernel takes a part of a write (`-F`, over TCP alone, too). So only
/// amounts are looked at.
fn iperf3(mut ends: Ends<'_>, _: &Files) {
    for (n, under) in MODES.into_iter().enumerate() {
        let (at, port) = (ends[0].address(), 7300 + u16::try_from(n).expect("few"));
        let command = format!("iperf3 -s -B {at} -p {port}");
        let service = Service::start(ends[0], under, ("iperf3", port), &command);
        until_the_lane_has_carried(&service, under, &mut ends, |client| {
            for way in ["", "-R", "-P 2"] {
                let client_of = format!("{under} iperf3 -c {at} -p {port} -J -n {MOVED} {way}");
                let said = client.shell(&client_of);
                assert!(!said.contains("\"error\""), "{said}");
                let [sent, received] = ["sum_sent", "sum_received"].map(|sum| bytes_of(&said, sum));
                // It is over when the client has sent all: the end may be on its way.
                assert!(sent >= MOVED && received <= sent, "{said}");
                assert!(received > MOVED / 4, "{said}");
            }
        });
        service.ends_by(ends[0], "TERM");
    }
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn iperf3_moves_streams_both_ways_between_two_guests() {
    between_two_guests("iperf3-guests", &["iperf3"], iperf3);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn iperf3_moves_streams_both_ways_between_a_guest_and_its_host() {
    with_the_host("iperf3-host-guest", &["iperf3"], Serves::Host, iperf3);
}

/// Programs of PostgreSQL for clients; the server has a place of its own.
const POSTGRES: &[&str] = &["psql", "pgbench"];
/// Somebody who is not root, as the server demands.
const NOBODY: &str = "--reuid=65534 --regid=65534 --clear-groups";

/// Puts a cluster into `$opt/data.tar`, and what is copied into a table into `$opt/rows`.
fn cluster(files: &Files) {
    let home = TempDir::new("cluster");
    let initdb = program("initdb").display().to_string();
    let (home, opt) = (home.path().display(), files.folder.path().display());
    let mut make = Command::new("sh");
    make.arg("-ec").arg(format!(
        "chown 65534 {home}; cd {home}
         setpriv {NOBODY} {initdb} -A trust -U test -E UTF8 --locale=C -N -D {home}/data
         echo 'host all all all trust' >>data/pg_hba.conf
         sed -i -E '/^(log_)?timezone/s/=.*/= GMT/' data/postgresql.conf
         tar -czf {opt}/data.tar data
         seq 1 20000 | sed 's/.*/&,row &, of a table/;s/, of/ of/' >{opt}/rows"
    ));
    must(make);
}

/// Puts the server into a guest, at the place where it looks for its other files.
fn fit_postgres(guest: Guest) -> Guest {
    let server = std::fs::canonicalize(program("postgres")).expect("PostgreSQL");
    let release = server.ancestors().nth(2).expect("its folder");
    let release = release.file_name().expect("a name").to_string_lossy();
    let zones = format!("/usr/share/postgresql/{release}/timezonesets");
    let language = server.with_file_name("../lib/plpgsql.so");
    let language = std::fs::canonicalize(language).expect("its libraries");
    let mut guest = guest
        .program(&server, &server.display().to_string())
        .and_then(|guest| guest.program(&program("setpriv"), "/opt/bin/setpriv"))
        .expect("PostgreSQL")
        .file(&language, &language.display().to_string())
        .memory(2 * MEMORY);
    for entry in std::fs::read_dir(&zones).expect("its time zones") {
        let file = entry.expect("a file").path();
        guest = guest.file(&file, &file.display().to_string());
    }
    guest
}

fn postgres(ends: Ends<'_>, files: &Files) {
    let server = std::fs::canonicalize(program("postgres")).expect("PostgreSQL");
    let rows = sha256_of_file(&files.folder.path().join("rows"));
    let mut answers = Vec::new();
    for (n, under) in MODES.into_iter().enumerate() {
        let (at, port) = (ends[0].address(), 7500 + u16::try_from(n).expect("few"));
        let said = ends[0].shell(
            "rm -rf /data; tar -xzf $opt/data.tar -C / && chown -R nobody /data && chmod 700 /data",
        );
        assert_eq!(said, "");
        let server = server.display();
        let command = format!(
            "/opt/bin/setpriv {NOBODY} {under} {server} -D /data -h {at} -p {port} -k '' -c fsync=off -c shared_buffers=32MB"
        );
        let service = Service::start(ends[0], "", ("postgres", port), &command);
        let connect = format!("-h {at} -p {port} -U test");
        let plain = "PGSSLMODE=disable PGGSSENCMODE=disable";
        let psql =
            format!("{plain} {under} psql -X -q -A -t -v ON_ERROR_STOP=1 {connect} -d postgres");
        let fill = r"-c 'create table t (n int, payload text)'";
        let said = ends[1].shell(&format!(
            "{psql} {fill} -c \"\\copy t from '$opt/rows' csv\" 2>&1"
        ));
        assert_eq!(said, "", "{}", service.log(ends[0]));
        // psql itself asks how its connection was carried, at the end.
        let since = Instant::now();
        loop {
            let got = ends[1].shell(&format!(
                "{psql} -c '\\copy (select * from t order by n) to stdout csv' \
                 -c '\\! memlane stats --json --pid $PPID >$work/lane 2>/dev/null' | sha256sum"
            ));
            assert_eq!(got, format!("{rows}  -\n"));
            let carried = ring_bytes(&ends[1].shell("cat $work/lane"));
            if under.is_empty() {
                assert_eq!(carried, 0);
                break;
            }
            if carried > 0 {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "{}", service.log(ends[0]));
        }
        let value = "select string_agg(md5(i::text), '') from generate_series(1, 40000) i";
        answers.push(ends[1].shell(&format!("{psql} -c \"{value}\" | sha256sum")));
        let pgbench = format!("{plain} {under} pgbench {connect}");
        ends[1].shell(&format!("{pgbench} -i -s 1 -q postgres >$work/fill 2>&1"));
        let said = ends[1].shell(&format!("{pgbench} -n -c 2 -t 50 postgres 2>&1"));
        assert!(said.contains("actually processed: 100/100"), "{said}");
        service.ends_by(ends[0], "INT");
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn postgres_gives_back_a_table_from_guest_to_guest() {
    let files = Files::new("postgres-guests");
    cluster(&files);
    let fit = |guest| fit_postgres(files.fit(guest, POSTGRES));
    let Some(two) = Neighbours::with("postgres-guests", LARGE, &fit) else {
        return;
    };
    let (mut server, mut client) = (two.boot_server(), two.boot_client());
    postgres([&mut server, &mut client], &files);
    all_extents_are_free(&two.stage.region);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn postgres_in_a_guest_gives_back_a_table_to_its_host() {
    let files = Files::new("postgres-host");
    cluster(&files);
    let fit = |guest| fit_postgres(files.fit(guest, POSTGRES));
    let Some(host) = Host::with("postgres-host", LARGE, &fit) else {
        return;
    };
    let (mut machine, mut local) = (host.boot(), Local::new(&host, files.folder.path()));
    postgres([&mut machine, &mut local], &files);
    all_extents_are_free(&host.stage.region);
}

/// Who is killed while traffic runs.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Killed {
    Server,
    Client,
}

/// nginx answers a wrk that compares each answer, and one of them is killed in the middle of that.
fn killed_under_load(
    ends: &mut Ends<'_>,
    (under, killed): (&str, Killed),
    port: u16,
    region: &Path,
) {
    let service = nginx(ends[0], under, port);
    let url = format!("http://{}:{port}", ends[0].address());
    // The shell that waits for wrk is not the one that asks how it ended.
    let wrk = "wrk -t 1 -c 8 -d 40s --timeout 60s -s $opt/compare.lua";
    let pid = ends[1].shell(&format!(
        "rm -f $work/status; ( {under} {wrk} {url}/page -- $opt/page >$work/said 2>&1 & echo $! >$work/pid; \
         wait $! && code=0 || code=$?; echo $code >$work/status ) </dev/null >/dev/null 2>&1 & \
         until [ -s $work/pid ]; do sleep 0.1; done; cat $work/pid; rm $work/pid"
    ));
    let since = Instant::now();
    let flows = |ends: &mut Ends<'_>| match under {
        "" => since.elapsed() > Duration::from_secs(5),
        _ => service.by_lane(ends[0]) > SOME,
    };
    while !flows(ends) {
        assert!(since.elapsed() < PATIENCE, "{}", service.log(ends[0]));
        std::thread::sleep(Duration::from_millis(100));
    }
    let over = ends[1].shell("cat $work/status 2>/dev/null");
    assert_eq!(over, "", "wrk was over before");
    let used = extents_in_use(region);
    assert_eq!(used > 0, !under.is_empty(), "{used} extents");
    match killed {
        Killed::Server => {
            service.ends_by(ends[0], "KILL");
            assert_eq!(status_of_wrk(ends[1]), 0);
            let [checked, wrong, errors] = compared(&ends[1].shell("cat $work/said"));
            assert!(
                checked > 0 && errors > 0,
                "{checked} answers, {errors} errors"
            );
            assert_eq!(wrong, 0);
        }
        Killed::Client => {
            ends[1].shell(&format!("kill -9 {}", pid.trim()));
            assert_eq!(status_of_wrk(ends[1]), 128 + 9);
            // nginx goes on.
            let curl = format!("{under} curl -q -sS --fail --noproxy '*' {url}/value");
            let again = ends[1].shell(&format!("{curl} | cmp - $opt/value && echo same"));
            assert_eq!(again, "same\n");
            service.ends_by(ends[0], "QUIT");
        }
    }
}

/// How wrk ended.
fn status_of_wrk(client: &mut dyn Computer) -> u32 {
    let since = Instant::now();
    loop {
        let said = client.shell("cat $work/status 2>/dev/null");
        if let Ok(status) = said.trim().parse() {
            return status;
        }
        assert!(since.elapsed() < PATIENCE, "wrk does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What wrk says at its end: answers, those that were wrong, and errors.
fn compared(said: &str) -> [u64; 3] {
    let found = said
        .lines()
        .find_map(|line| line.strip_prefix("compared: "));
    let numbers = found.unwrap_or_else(|| panic!("{said}")).split_whitespace();
    let numbers: Vec<u64> = numbers.map(|number| number.parse().expect(said)).collect();
    numbers.try_into().expect("three numbers")
}

fn kills(mut ends: Ends<'_>, region: &Path) {
    let mut port = 7400;
    for under in MODES {
        for killed in [Killed::Server, Killed::Client] {
            eprintln!("{killed:?} killed {under}");
            port += 1;
            killed_under_load(&mut ends, (under, killed), port, region);
            all_extents_are_free(region);
        }
    }
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_program_that_is_killed_under_load_is_for_another_guest_what_tcp_would_show() {
    let files = Files::new("killed-guests");
    let Some(two) = Neighbours::with("killed-guests", LARGE, &|guest| files.fit(guest, NGINX))
    else {
        return;
    };
    let (mut server, mut client) = (two.boot_server(), two.boot_client());
    kills([&mut server, &mut client], &two.stage.region);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_program_that_is_killed_under_load_is_for_guest_or_host_what_tcp_would_show() {
    let files = Files::new("killed-host");
    let Some(host) = Host::with("killed-host", LARGE, &|guest| files.fit(guest, NGINX)) else {
        return;
    };
    let (mut machine, mut local) = (host.boot(), Local::new(&host, files.folder.path()));
    kills([&mut machine, &mut local], &host.stage.region);
}
