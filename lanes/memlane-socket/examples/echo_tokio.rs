//! An echo server as tasks of tokio: a runtime waits for a stream by its descriptor.
//!
//! `cargo run -p memlane-socket --features std --example echo_tokio -- 127.0.0.1:7007`

use memlane_socket::Listener;
use memlane_socket::Stream;
use memlane_socket::native::Counts;
use std::io::{self, ErrorKind, Read, Write};
use tokio::io::unix::AsyncFd;

/// How often a task looks before it sleeps: the next bytes for one that sleeps come by TCP, which is what wakes it. Others
/// get their turn in between.
const LOOKS: u32 = 50;

/// A stream that a task waits for.
pub(crate) struct AsyncStream(AsyncFd<Stream>);

impl AsyncStream {
    /// Of a stream; inside a runtime.
    pub(crate) fn new(mut stream: Stream) -> io::Result<AsyncStream> {
        stream.set_nonblocking(true)?;
        // SAFETY: a stream's descriptor is the same one, and open, until the stream is dropped.
        let registered = unsafe { AsyncFd::register(stream) };
        Ok(AsyncStream(registered?))
    }

    /// Reads what is there, at least a byte; 0 at the end.
    pub(crate) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut looks = 0;
        loop {
            match Read::read(self.0.get_mut(), into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => looks += 1,
                done => return done,
            }
            // Bytes in memory wake nobody. From an `arm` on the next ones come by TCP, which wakes the runtime …
            if looks > LOOKS && self.0.get_ref().arm() {
                // … and its word is good for one look: what comes after it is a new one.
                self.0.readable_mut().await?.clear_ready();
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Sends all of it.
    pub(crate) async fn write_all(&mut self, mut from: &[u8]) -> io::Result<()> {
        while !from.is_empty() {
            match Write::write(self.0.get_mut(), from) {
                Ok(n) => from = &from[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.0.writable_mut().await?.clear_ready();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What went which way.
    pub(crate) fn counts(&self) -> Counts {
        self.0.get_ref().counts()
    }
}

/// Echoes to the stream's end.
pub(crate) async fn echo(mut stream: AsyncStream) -> io::Result<Counts> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(stream.counts()),
            n => stream.write_all(&buffer[..n]).await?,
        }
    }
}

/// The next connection.
pub(crate) async fn accept(listener: &AsyncFd<Listener>) -> io::Result<AsyncStream> {
    loop {
        let mut guard = listener.readable().await?;
        match listener.get_ref().accept() {
            Err(error) if error.0 == libc::EAGAIN => guard.clear_ready(),
            accepted => return AsyncStream::new(accepted?),
        }
    }
}

#[allow(dead_code)] // a test has this file as a module
fn main() -> io::Result<()> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:7007".to_owned());
    let address = address
        .parse()
        .map_err(|_| io::Error::other("an address is wanted: 127.0.0.1:7007"))?;
    let listener = Listener::bind(&address)?;
    listener.set_nonblocking(true)?;
    writeln!(io::stdout(), "echo on {}", listener.local_addr()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        // SAFETY: likewise a listener's.
        let listener = unsafe { AsyncFd::register(listener) }?;
        loop {
            let stream = accept(&listener).await?;
            tokio::spawn(async move {
                if let Err(error) = echo(stream).await {
                    eprintln!("a connection ended: {error}");
                }
            });
        }
    })
}
