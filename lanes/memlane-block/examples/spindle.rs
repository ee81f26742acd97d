//! What the server's half costs without a transport: requests a second of one service, by volume and depth.
//!
//! ```text
//! cargo run --release -p memlane-block --example spindle -- DIR [SECONDS]
//! ```
//!
//! `DIR` gets a file of 256 MiB. Each line is one volume, one way to reach it, one depth: 4 KiB at random places.

use memlane_block::server::{BlockService, ServerConfig, Shared};
use memlane_block::store::{Direct, Kind};
use memlane_block::volume::{Flags, Op};
use memlane_block::wire::{Access, IoMsg, Open, OpenRsp};
use memlane_core::region::Region;
use memlane_transport::engine::Direction;
use memlane_transport::engine::server::{Job, SessionId};
use memlane_transport::port::{Identity, Service as _};
use rustix::event::{PollFd, PollFlags};
use std::io::Write as _;
use std::time::{Duration, Instant};

const CHUNK: usize = 128 << 10;
const EACH: u32 = 4096;
const SIZE: u64 = 256 << 20;
const SESSION: SessionId = SessionId(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("which folder?")?;
    let seconds = args.next().map_or(Ok(1.0), |text| text.parse())?;
    let limit = Duration::from_secs_f64(seconds);
    let name = format!("spindle-{}", std::process::id());
    let path = std::path::Path::new(&dir).join(&name);
    // In small pieces: ext4 walks through all blocks of a large folio for each small write to it.
    let mut file = std::fs::File::create(&path)?;
    for _ in 0..SIZE / 4096 {
        file.write_all(&[1; 4096])?;
    }
    file.sync_all()?;
    let file = (name.as_str(), Direct::Off, "file, page cache");
    let direct = (name.as_str(), Direct::On, "file, direct");
    let volumes = [
        ("null:1T", Direct::Off, "null"),
        ("mem:256M", Direct::Off, "mem"),
        file,
        direct,
    ];
    for (volume, direct, label) in volumes {
        for store in [Kind::Ring, Kind::Threads] {
            let mut config = ServerConfig::new(dir.clone().into());
            (config.test_volumes, config.store, config.direct) = (true, store, direct);
            let shared = Shared::new(config)?;
            for (depth, op) in [
                (1, Op::Read),
                (32, Op::Read),
                (1, Op::Write),
                (32, Op::Write),
            ] {
                match measure(shared.service()?, volume, depth, op, limit) {
                    Ok((iops, cpu)) => println!(
                        "{label:18} {store:8?} {op:?} depth {depth:2}: {iops:9.0} a second, {cpu:5.2} µs of CPU each"
                    ),
                    Err(error) => println!("{label:18} {store:8?}: {error}"),
                }
            }
        }
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

fn measure(
    mut service: BlockService,
    volume: &str,
    depth: u16,
    op: Op,
    limit: Duration,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let chunks = Region::create(c"chunks", CHUNK * usize::from(depth), false);
    let chunks = chunks.map_err(|errno| format!("no memory: {errno}"))?;
    let chunk = |permit: u16| {
        let part = chunks.bytes().part(usize::from(permit) * CHUNK, CHUNK);
        part.ok_or("no such chunk")
    };
    service.opened(SESSION, "spindle", &Identity::Unknown);
    let access = Access::ReadWrite;
    let usr = Open::new(access, volume).encode()?.to_vec();
    service.execute(job(0, Direction::Read, 56, usr), chunk(0)?);
    let mut done = Vec::new();
    service.finished(&mut done);
    if done[0].errno != 0 {
        return Err(format!("errno {}", done[0].errno).into());
    }
    let mut rsp = [0; 56];
    // SAFETY: `rsp` is as long.
    unsafe { chunk(0)?.copy_out(0, rsp.as_mut_ptr(), 56) };
    let rsp = OpenRsp::decode(&rsp)?;
    let blocks = rsp.info().size / u64::from(EACH);
    let mut random = 1u64;
    let mut next = |permit| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let io = IoMsg {
            device_id: rsp.device_id,
            sector: (random >> 20) % blocks * u64::from(EACH / 512),
            op,
            flags: Flags::NONE,
            len: EACH,
            prio: 0,
        };
        let way = if op == Op::Read {
            Direction::Read
        } else {
            Direction::Write
        };
        job(permit, way, EACH, io.encode().to_vec())
    };
    done.clear();
    for permit in 0..depth {
        service.execute(next(permit), chunk(permit)?);
    }
    let (start, cpu, mut count) = (Instant::now(), cpu_time(), 0u64);
    while start.elapsed() < limit {
        service.finished(&mut done);
        if done.is_empty() {
            let fd = service.fd().ok_or("nothing under way")?;
            rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
        }
        count += done.len() as u64;
        for one in done.drain(..) {
            if one.errno != 0 {
                return Err(format!("errno {}", one.errno).into());
            }
            service.execute(next(one.permit), chunk(one.permit)?);
        }
    }
    let (took, cpu) = (
        start.elapsed().as_secs_f64(),
        (cpu_time() - cpu).as_secs_f64(),
    );
    #[allow(clippy::cast_precision_loss)] // a figure for people
    let n = count as f64;
    Ok((n / took, cpu / n * 1e6))
}

fn job(permit: u16, direction: Direction, len: u32, usr: Vec<u8>) -> Job {
    Job {
        session: SESSION,
        permit,
        generation: 1,
        direction,
        len,
        usr: usr.into(),
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
