//! Many large requests at once: nobody waits for the last of them before anything is done about the first.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod support;

use memlane_core::access::SharedBytes;
use memlane_transport::engine::Direction;
use memlane_transport::engine::server::{Job, SessionId};
use memlane_transport::io::{Address, Server, ServerConfig, serve};
use memlane_transport::port::{Finished, Identity, Service, Session, Submission};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::{MOST, PATIENCE, connect, local, server_engine, tcp, usr};

/// Does everything at once, and counts what it was given before it was asked what is done.
struct Gulps {
    given: u32,
    most: Arc<AtomicU32>,
    done: Vec<Finished>,
}

impl Service for Gulps {
    fn opened(&mut self, _: SessionId, _: &str, _: &Identity) -> bool {
        true
    }

    fn execute(&mut self, job: Job, chunk: SharedBytes) {
        self.given += job.len;
        self.most.fetch_max(self.given, Ordering::Relaxed);
        let bytes = vec![job.usr[0]; job.len as usize];
        // SAFETY: `bytes` is as long as is said.
        assert!(unsafe { chunk.copy_in(0, bytes.as_ptr(), bytes.len()) });
        self.done.push(Finished {
            session: job.session,
            permit: job.permit,
            generation: job.generation,
            errno: 0,
        });
    }

    fn finished(&mut self, into: &mut Vec<Finished>) {
        self.given = 0;
        into.append(&mut self.done);
    }

    fn notices(&mut self, _: &mut Vec<(SessionId, u32)>) {}

    fn gone(&mut self, _: SessionId) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn gulping(listen: Address) -> (Server, Arc<AtomicU32>) {
    let most = Arc::<AtomicU32>::default();
    let told = Arc::clone(&most);
    let config = ServerConfig::new(vec![listen], server_engine(1));
    let server = serve(config, move |_| {
        Ok(Gulps {
            given: 0,
            most: Arc::clone(&told),
            done: Vec::new(),
        })
    });
    (server.expect("a server"), most)
}

#[test]
fn a_server_answers_the_first_of_many_large_requests_before_it_takes_in_the_last() {
    const COUNT: u64 = 32;
    for listen in [tcp(), local()] {
        let (server, most) = gulping(listen);
        let session = connect(&[&server.addresses()[0]]);
        let mut port = session.port().expect("a port");
        let start = Instant::now();
        let mut leases = Vec::new();
        while (leases.len() as u64) < COUNT {
            match port.lease(MOST).expect("not too long") {
                Some(lease) => leases.push(lease),
                None => port.wait(Some(Duration::from_millis(20))),
            }
            assert!(start.elapsed() < PATIENCE, "no leases");
        }
        for (tag, lease) in (0..).zip(leases) {
            port.submit(Submission {
                tag,
                direction: Direction::Read,
                usr: usr(tag + 1, tag),
                len: MOST,
                lease: Some(lease),
            });
        }
        // All of them, by one system call.
        port.push();
        let mut done = Vec::new();
        while (done.len() as u64) < COUNT {
            port.wait(Some(Duration::from_secs(1)));
            port.reap(&mut done);
            assert!(start.elapsed() < PATIENCE, "{} were done", done.len());
        }
        for completion in done {
            completion.result.expect("a result");
            let mut bytes = vec![0; MOST as usize];
            let lease = completion.lease.expect("it comes back");
            assert!(lease.take(0, &mut bytes));
            assert!(
                bytes
                    .iter()
                    .all(|byte| u64::from(*byte) == completion.tag + 1)
            );
        }
        let most = most.load(Ordering::Relaxed);
        assert!(most <= (256 << 10) + MOST, "{most} bytes in one gulp");
    }
}
