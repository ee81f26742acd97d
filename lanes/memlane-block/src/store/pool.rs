//! Files by plain calls on a few threads: where `io_uring` is not permitted, and for what it cannot do.

use super::{Completion, Request, Store, plain};
use rustix::event::EventfdFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A disk alone has seldom more to do at a time.
const THREADS: usize = 4;

/// What other threads tell an engine's thread: what is done, or merely that it should look.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    /// Is there anything? So that looking costs no lock.
    rung: AtomicBool,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    done: Vec<Completion>,
    /// The descriptor is readable.
    signalled: bool,
}

impl Bell {
    fn new() -> io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell {
            fd: rustix::event::eventfd(0, flags)?,
            rung: AtomicBool::new(false),
            told: Mutex::default(),
        })
    }

    /// Makes the engine's descriptor readable.
    pub fn ring(&self) {
        self.tell(None);
    }

    fn tell(&self, done: Option<Completion>) {
        let mut told = lock(&self.told);
        told.done.extend(done);
        self.rung.store(true, Ordering::Release);
        if !told.signalled {
            // It can only fail if the counter is at its end: then it is readable.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
            told.signalled = true;
        }
    }

    /// Appends what is done; the descriptor is not readable any more.
    fn hear(&self, into: &mut Vec<Completion>) {
        if !self.rung.load(Ordering::Acquire) {
            return;
        }
        let mut told = lock(&self.told);
        if told.signalled {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
            told.signalled = false;
        }
        self.rung.store(false, Ordering::Release);
        into.append(&mut told.done);
    }
}

#[derive(Debug)]
struct Work {
    todo: Mutex<Todo>,
    some: Condvar,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct Todo {
    requests: VecDeque<Request>,
    idle: usize,
    over: bool,
}

/// Threads, of which there are none until there is work.
#[derive(Debug)]
pub struct Pool {
    work: Arc<Work>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// One.
    ///
    /// # Errors
    /// Descriptors are used up.
    pub fn new() -> io::Result<Pool> {
        Ok(Pool {
            work: Arc::new(Work {
                todo: Mutex::default(),
                some: Condvar::new(),
                bell: Arc::new(Bell::new()?),
            }),
            threads: Vec::new(),
        })
    }

    /// One more thread, if all are at work. None to be had: those that are there do it, or nobody can.
    fn grow(&mut self, idle: usize, waiting: usize) -> bool {
        if idle >= waiting || self.threads.len() >= THREADS {
            return true;
        }
        let work = Arc::clone(&self.work);
        let name = std::thread::Builder::new().name("memlane-store".to_owned());
        if let Ok(thread) = name.spawn(move || work.serve()) {
            self.threads.push(thread);
        }
        !self.threads.is_empty()
    }
}

impl Work {
    fn serve(&self) {
        while let Some(request) = self.next() {
            let result = plain::perform(&request);
            self.bell.tell(Some(Completion {
                id: request.id,
                result,
            }));
        }
    }

    fn next(&self) -> Option<Request> {
        let mut todo = lock(&self.todo);
        loop {
            if todo.over {
                return None;
            }
            if let Some(request) = todo.requests.pop_front() {
                return Some(request);
            }
            todo.idle += 1;
            todo = self.some.wait(todo).unwrap_or_else(PoisonError::into_inner);
            todo.idle -= 1;
        }
    }
}

impl Store for Pool {
    fn submit(&mut self, request: Request) {
        let id = request.id;
        let mut todo = lock(&self.work.todo);
        todo.requests.push_back(request);
        let (idle, waiting) = (todo.idle, todo.requests.len());
        drop(todo);
        self.work.some.notify_one();
        if !self.grow(idle, waiting) {
            // Not one thread: nobody will ever come for it.
            lock(&self.work.todo).requests.clear();
            let result = Err(memlane_sys::Errno(libc::EIO));
            self.work.bell.tell(Some(Completion { id, result }));
        }
    }

    fn complete(&mut self, into: &mut Vec<Completion>) {
        self.work.bell.hear(into);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.work.bell.fd.as_fd()
    }

    fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.work.bell)
    }
}

impl Drop for Pool {
    /// What has begun ends before its memory may go; what has not never begins.
    fn drop(&mut self) {
        let mut todo = lock(&self.work.todo);
        todo.over = true;
        todo.requests.clear();
        drop(todo);
        self.work.some.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
