//! Containers of docker, with the flags that the guide names for engines that know no CDI devices (docker before 28.2).
//!
//! Needs docker.io and what the tests with podman need. `./dev` installs no docker, whose service changes the host's firewall.

use memlane_system::containers::{Docker, Engine, upgraded};
use memlane_system::harness::plain_only;

/// The options of `docker run` by which a container gets memlane.
fn flags(engine: &mut Engine) -> Vec<String> {
    let (library, domain) = (engine.library(), engine.agent().directory());
    let mounts = [
        format!("--volume={library}:/opt/memlane:ro"),
        format!("--volume={domain}:/run/memlane/default:ro"),
    ];
    let environment = [
        "--env=LD_PRELOAD=/opt/memlane/$LIB/libmemlane_preload.so",
        "--env=MEMLANE_DOMAIN=/run/memlane/default",
        "--env=MEMLANE_STATS_ON_EXIT=1",
    ];
    mounts
        .into_iter()
        .chain(environment.map(str::to_owned))
        .collect()
}

/// redis and its benchmark in two containers on a network that docker has made: how many of four connections got lanes.
fn lanes(docker: &Docker, flags: &[&str]) -> Result<u64, String> {
    docker.run(&["network", "create", "shop"])?;
    let server = ["run", "--detach", "--name", "cache", "--network", "shop"];
    let redis = ["/bin/redis-server", "--protected-mode", "no", "--save", ""];
    docker.run(&[&server, flags, &[docker.image()], &redis].concat())?;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while docker
        .run(&["exec", "cache", "/bin/redis-cli", "ping"])
        .is_err()
    {
        assert!(std::time::Instant::now() < end, "redis does not answer");
    }
    let client = ["run", "--rm", "--network", "shop"];
    let benchmark = [
        "/bin/redis-benchmark",
        "-h",
        "cache",
        "-t",
        "get",
        "-n",
        "40000",
        "-c",
        "4",
        "-q",
    ];
    let said = docker.run(&[&client, flags, &[docker.image()], &benchmark].concat())?;
    eprintln!("{said}");
    Ok(upgraded(&said))
}

#[test]
fn two_containers_of_docker_get_lanes_by_the_flags_of_the_guide() {
    if plain_only() {
        return;
    }
    let mut engine = match Engine::start("memlane-test-docker") {
        Ok(engine) => engine,
        Err(why) => return eprintln!("SKIPPED docker: {why}"),
    };
    let docker = match Docker::start("docker", &engine) {
        Ok(docker) => docker,
        Err(why) => return eprintln!("SKIPPED docker: {why}"),
    };
    let flags = flags(&mut engine);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let lanes = lanes(&docker, &flags).unwrap_or_else(|why| panic!("{why}"));
    assert!(lanes >= 4, "{lanes}");
}
