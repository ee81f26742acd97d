//! Somebody else who uses the CPUs that are measured on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::sys;

/// Threads that compute until this is dropped.
#[derive(Debug)]
pub(crate) struct Strangers {
    enough: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Strangers {
    /// So many of them, each of which may use all of these CPUs.
    pub(crate) fn start(how_many: usize, cpus: &[usize]) -> Strangers {
        let enough = Arc::new(AtomicBool::new(false));
        let compute = || {
            let (enough, cpus) = (Arc::clone(&enough), cpus.to_vec());
            let thread = std::thread::Builder::new().name("stranger".to_owned());
            let computes = move || {
                sys::stay_on(&cpus);
                while !enough.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            thread.spawn(computes).expect("a thread")
        };
        let threads = (0..how_many).map(|_| compute()).collect();
        Strangers { enough, threads }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_stranger_computes_until_it_is_dropped() {
        let cpus = sys::allowed_cpus();
        let stranger = Strangers::start(1, &cpus[..1]);
        let until = Instant::now() + Duration::from_secs(20);
        while sys::own_cpu_seconds() < 0.2 {
            assert!(Instant::now() < until, "it does not compute");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Dropping it waits for its end.
        drop(stranger);
    }
}
