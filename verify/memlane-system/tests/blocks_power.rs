//! Power cuts, as far as processes can imitate them: the server, or the server and the client, are killed between
//! writes and flushes, repeatedly, at moments that a seed selects. Acknowledged data must be there, by content,
//! through the mapping and in the file behind the volume.
//!
//! `MEMLANE_SEED=n` selects another seed. (`blocks_guest` covers a machine that loses its page cache.)

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlane_system::blocks::alone::{Alone, Mapping};
use memlane_system::blocks::writer::{BLOCK, Loses, Writer};
use memlane_system::blocks::{Rng, seed, skip};

const WRITERS: u64 = 4;
/// Blocks of each writer.
const EACH: usize = 96;
const ROUNDS: u64 = 40;

struct World {
    alone: Alone,
    writers: Vec<Writer>,
    rng: Rng,
    session: u32,
}

impl World {
    fn map(&mut self) -> Mapping {
        self.session += 1;
        let at = match self.rng.below(2) {
            0 => self.alone.local(),
            _ => self.alone.tcp(),
        };
        self.alone
            .fuse(&format!("power{}", self.session), &at, "disk", &[])
    }

    /// All write to the file at `path` while `trouble` happens.
    fn round(&mut self, path: &Path, trouble: impl FnOnce(&mut Alone, &mut Rng)) {
        let over = AtomicBool::new(false);
        let (alone, rng) = (&mut self.alone, &mut self.rng);
        std::thread::scope(|scope| {
            for writer in &mut self.writers {
                let file = File::options().read(true).write(true).open(path);
                let (file, over) = (file.expect("the mapped file"), &over);
                scope.spawn(move || writer.work(&file, over));
            }
            std::thread::sleep(Duration::from_millis(20 + rng.below(60)));
            trouble(alone, rng);
            over.store(true, Ordering::SeqCst);
        });
    }

    fn writes(&self) -> u64 {
        self.writers.iter().map(|writer| writer.writes).sum()
    }

    fn check(&mut self, from: &Path, name: &str) {
        let bytes = std::fs::read(from).expect(name);
        for writer in &mut self.writers {
            writer.check(&bytes, Loses::Nothing, name);
        }
    }
}

/// What the mapping shows, past the kernel's cache of it.
fn past_the_cache(mapping: &Mapping) -> Vec<u8> {
    let mut dd = Command::new("dd");
    dd.args(["bs=64k", "iflag=direct", "status=none"]);
    dd.arg(format!("if={}", mapping.shown()));
    let said = dd.output().expect("dd");
    assert!(said.status.success(), "{said:?}");
    said.stdout
}

#[test]
fn everything_acknowledged_is_there_when_the_server_or_all_are_killed_between_writes_and_flushes() {
    let test = "power";
    if File::open("/dev/fuse").is_err() {
        return skip(test, "no /dev/fuse that this user may open");
    }
    let seed = seed();
    let mut alone = Alone::new(test);
    let file = alone.volume("disk", WRITERS * EACH as u64 * BLOCK);
    alone.serve(&[]);
    let mut world = World {
        alone,
        writers: (0..WRITERS)
            .map(|number| Writer::new(number, EACH, seed))
            .collect(),
        rng: Rng(seed),
        session: 0,
    };
    let (mut servers, mut cuts) = (0, 0);
    let mut mapping = world.map();
    for round in 0..ROUNDS {
        let name = format!("seed {seed}, round {round}");
        let path = PathBuf::from(mapping.shown());
        if world.rng.below(2) == 0 {
            let before = world.writes();
            world.round(&path, |alone, rng| {
                alone.kill();
                std::thread::sleep(Duration::from_millis(rng.below(30)));
                alone.serve(&[]);
                std::thread::sleep(Duration::from_millis(20 + rng.below(80)));
            });
            assert!(world.writes() > before, "{name}: nobody wrote");
            // Whoever uses the volume has waited, and seen no error.
            assert!(
                !world.writers.iter().any(Writer::is_unsure),
                "{name}: a write failed"
            );
            servers += 1;
        } else {
            world.round(&path, move |alone, rng| match rng.below(2) {
                0 => {
                    alone.kill();
                    mapping.kill();
                }
                _ => {
                    mapping.kill();
                    alone.kill();
                }
            });
            cuts += 1;
            world.check(&file, &name);
            world.alone.serve(&[]);
            mapping = world.map();
        }
        world.check(&file, &name);
        assert!(
            past_the_cache(&mapping) == std::fs::read(&file).expect("the file"),
            "{name}"
        );
    }
    mapping.end();
    let (writes, flushes) = (
        world.writes(),
        world
            .writers
            .iter()
            .map(|writer| writer.flushes)
            .sum::<u64>(),
    );
    println!(
        "{test}: seed {seed}: the server was killed {servers} times, all at once {cuts} times, during {writes} writes and {flushes} flushes"
    );
    assert!(servers > 0 && cuts > 0 && flushes > 0);
}
