//! `./dev demo blocks`: one machine uses a volume of another over two cables, while one cable is pulled and the
//! server is killed and restarted. fio writes, reads back and verifies throughout.

use std::time::{Duration, Instant};

use memlane_system::blocks::fio::Verifying;
use memlane_system::blocks::has;
use memlane_system::blocks::machines::Machines;
use memlane_system::blocks::volumes::{Mapped, Serving};

const SECONDS: u32 = 9;

fn main() {
    if !has("fio") {
        eprintln!("no fio: apt-get install fio");
        std::process::exit(3);
    }
    let machines = match Machines::new("demo-blocks", 2) {
        Ok(machines) => machines,
        Err(why) => {
            eprintln!("two machines with cables between them cannot be made here: {why}");
            std::process::exit(3);
        }
    };
    demo(&machines);
}

fn say(begin: Instant, text: &str) {
    println!("{:5.1} s  {text}", begin.elapsed().as_secs_f64());
}

fn demo(machines: &Machines) {
    let begin = Instant::now();
    Serving::make_volume(machines, "disk", 64 << 20);
    let server = Serving::start(machines, &[]);
    say(
        begin,
        "server$ memlane serve --root …/root --listen tcp://… --listen tcp://…",
    );
    let mapped = Mapped::new(machines, "disk", &[]);
    mapped.wait_for_paths(2);
    say(
        begin,
        "client$ memlane map --as nbd:unix:… …,… disk: two paths are up",
    );
    let fio = Verifying::start(&mapped.uri(), SECONDS, &[]);
    say(
        begin,
        "fio writes, reads back and verifies at the NBD export",
    );

    std::thread::sleep(Duration::from_secs(2));
    machines.pull(0, true);
    say(begin, "the first cable is pulled");
    mapped.wait_for_paths(1);
    say(begin, "its path is down; requests go by the other");
    machines.pull(0, false);
    mapped.wait_for_paths(2);
    say(begin, "the cable is back, and so is the path");

    server.kill();
    say(begin, "the server is killed (SIGKILL)");
    let server = Serving::start(machines, &[]);
    say(begin, "… and started again");
    mapped.wait_for_paths(2);
    say(begin, "both paths are up, the volume is open again");

    let verdict = fio.must_find_nothing(Duration::from_secs(60));
    let over = mapped.failed_over();
    println!();
    println!("requests verified by fio      {:>10}", verdict.requests);
    println!("found wrong                   {:>10}", 0);
    println!("sent again by another path    {over:>10}");
    println!(
        "longest time without an answer {:>6.0} ms",
        verdict.longest.as_secs_f64() * 1000.0
    );
    println!("(a pulled cable says nothing: it is noticed after 0.8 s of silence)");
    mapped.unmap();
    drop(server);
}
