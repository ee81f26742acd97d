//! Files by plain calls on a few threads: where `io_uring` is not permitted, and for what it cannot do.

use super::plain;
use super::request::{Store, StoreRequest};
use super::wakeup::{Completion, Wakeup};
use memlane_wait::mutex::{lock, wait};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// A disk alone has seldom more to do at a time.
const THREADS: usize = 4;

#[derive(Debug)]
struct Work {
    todo: Mutex<Todo>,
    some: Condvar,
    wakeup: Arc<Wakeup>,
}

#[derive(Debug, Default)]
struct Todo {
    requests: VecDeque<StoreRequest>,
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
                wakeup: Arc::new(Wakeup::new()?),
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
            self.wakeup.tell(Some(Completion {
                id: request.id,
                result,
            }));
        }
    }

    fn next(&self) -> Option<StoreRequest> {
        let mut todo = lock(&self.todo);
        loop {
            if todo.over {
                return None;
            }
            if let Some(request) = todo.requests.pop_front() {
                return Some(request);
            }
            todo.idle += 1;
            todo = wait(&self.some, todo);
            todo.idle -= 1;
        }
    }
}

impl Store for Pool {
    fn submit(&mut self, request: StoreRequest) {
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
            self.work.wakeup.tell(Some(Completion { id, result }));
        }
    }

    fn complete(&mut self, into: &mut Vec<Completion>) {
        self.work.wakeup.take(into);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.work.wakeup.as_fd()
    }

    fn wakeup(&self) -> Arc<Wakeup> {
        Arc::clone(&self.work.wakeup)
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
