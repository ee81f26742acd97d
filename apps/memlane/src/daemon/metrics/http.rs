//! As much of HTTP as Prometheus needs, for clients that may be slow, greedy or many: one thread, a fixed number of
//! clients of whom the oldest goes when there is one too many, a time limit for each, one answer for all that ask at
//! about the same time.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a client may take, from its first byte to its answer's last.
const PATIENCE: Duration = Duration::from_secs(4);
/// Longest head of a request.
const LONGEST: usize = 8192;
/// Clients at a time. One more, and the one that has been here longest goes.
const CLIENTS: usize = 32;
/// An answer so young is given again.
const FRESH: Duration = Duration::from_millis(500);

/// How a page is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    Open,
    /// What there was before it: Prometheus' text format 0.0.4.
    Classic,
}

impl Format {
    fn content_type(self) -> &'static str {
        match self {
            Format::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Listens; each request for /metrics gets what `page` gives at about that moment.
pub(crate) fn serve(
    at: SocketAddr,
    page: impl FnMut(Format) -> String + Send + 'static,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    let at = listener.local_addr()?;
    let mut server = Server {
        listener,
        clients: Vec::new(),
        page,
        last: None,
    };
    let thread = std::thread::Builder::new().name("metrics".into());
    thread.spawn(move || {
        loop {
            server.turn();
        }
    })?;
    Ok(at)
}

struct Server<F> {
    listener: TcpListener,
    /// In the order in which they came.
    clients: Vec<Client>,
    page: F,
    last: Option<(Instant, Format, String)>,
}

struct Client {
    stream: TcpStream,
    until: Instant,
    asked: Vec<u8>,
    /// What is left of the answer, once there is one.
    answer: Option<Vec<u8>>,
    sent: usize,
}

impl<F: FnMut(Format) -> String> Server<F> {
    /// Waits until something can be done, and does it.
    fn turn(&mut self) {
        let ready = self.wait();
        let now = Instant::now();
        let mut at = 0;
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain_mut(|client| {
            let mine = ready.get(at).copied().unwrap_or(false);
            at += 1;
            client.until > now && (!mine || self.step(client).unwrap_or(false))
        });
        self.clients = clients;
        self.welcome();
    }

    /// Who can go on: a flag for each client.
    fn wait(&self) -> Vec<bool> {
        let flags = |client: &Client| match client.answer {
            None => PollFlags::IN,
            Some(_) => PollFlags::OUT,
        };
        let clients = self.clients.iter();
        let mut polled: Vec<PollFd<'_>> = clients
            .map(|client| PollFd::from_borrowed_fd(client.stream.as_fd(), flags(client)))
            .collect();
        polled.push(PollFd::from_borrowed_fd(
            self.listener.as_fd(),
            PollFlags::IN,
        ));
        let now = Instant::now();
        let first = self.clients.iter().map(|client| client.until).min();
        // A little longer, so that it is over by then.
        let pause = first.map(|until| until.saturating_duration_since(now) + FRESH / 100);
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        if poll(&mut polled, pause.as_ref()).is_err() {
            return Vec::new();
        }
        let clients = polled.iter().take(self.clients.len());
        clients.map(|one| !one.revents().is_empty()).collect()
    }

    fn welcome(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.add(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // No descriptor left, say: the listener stays ready, and this thread shall not run round and round.
                Err(_) => return std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn add(&mut self, stream: TcpStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.clients.len() == CLIENTS {
            self.clients.remove(0);
        }
        self.clients.push(Client {
            stream,
            until: Instant::now() + PATIENCE,
            asked: Vec::new(),
            answer: None,
            sent: 0,
        });
    }

    /// As far as it goes now. Is there more to do?
    fn step(&mut self, client: &mut Client) -> io::Result<bool> {
        if client.answer.is_none() {
            if !client.listen()? {
                return Ok(true);
            }
            client.answer = Some(self.answer(&client.asked));
        }
        client.speak()
    }

    fn answer(&mut self, asked: &[u8]) -> Vec<u8> {
        let text = |status: &str, body: &str| response(status, "text/plain", body, true);
        let head = String::from_utf8_lossy(asked);
        if !head.contains("\r\n\r\n") {
            return text("431 Request Header Fields Too Large", "too long\n");
        }
        let mut words = head.lines().next().unwrap_or_default().split(' ');
        let (method, target) = (words.next(), words.next().unwrap_or_default());
        let with_body = match method {
            Some("GET") => true,
            Some("HEAD") => false,
            _ => return text("405 Method Not Allowed", "only GET and HEAD\n"),
        };
        if target.split('?').next() != Some("/metrics") {
            return response("404 Not Found", "text/plain", "try /metrics\n", with_body);
        }
        let format = wanted(&head);
        let body = self.fresh(format);
        response("200 OK", format.content_type(), &body, with_body)
    }

    fn fresh(&mut self, format: Format) -> String {
        match &self.last {
            Some((then, same, text)) if *same == format && then.elapsed() < FRESH => text.clone(),
            _ => {
                let text = (self.page)(format);
                self.last = Some((Instant::now(), format, text.clone()));
                text
            }
        }
    }
}

impl Client {
    /// Takes what has come. Is it a whole head, or more than one may be?
    fn listen(&mut self) -> io::Result<bool> {
        let mut some = [0; 1024];
        loop {
            match self.stream.read(&mut some) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.asked.extend_from_slice(&some[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            let whole = self.asked.windows(4).any(|bytes| bytes == b"\r\n\r\n");
            if whole || self.asked.len() >= LONGEST {
                return Ok(true);
            }
        }
    }

    /// Sends what there is room for. Is something left?
    fn speak(&mut self) -> io::Result<bool> {
        let answer = self.answer.as_deref().unwrap_or_default();
        while self.sent < answer.len() {
            match self.stream.write(&answer[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// OpenMetrics, unless only the other one is named.
fn wanted(head: &str) -> Format {
    let named = |text: &str| {
        let mut lines = head.lines().map(str::to_ascii_lowercase);
        lines.any(|line| line.starts_with("accept:") && line.contains(text))
    };
    match named("text/plain") && !named("openmetrics") {
        true => Format::Classic,
        false => Format::Open,
    }
}

fn response(status: &str, kind: &str, body: &str, with_body: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if with_body { body } else { "" };
    (head + body).into_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A server, and how often its page was made.
    fn server(page: String) -> (SocketAddr, Arc<AtomicU32>) {
        let made = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&made);
        let at = serve("127.0.0.1:0".parse().unwrap(), move |format| {
            count.fetch_add(1, Ordering::Relaxed);
            format!("{format:?} {page}")
        });
        (at.unwrap(), made)
    }

    fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut said = Vec::new();
        // A reset after the answer loses nothing that was read.
        let _ = stream.read_to_end(&mut said);
        String::from_utf8(said).unwrap()
    }

    #[test]
    fn the_format_is_the_one_that_is_asked_for() {
        let (at, _) = server("page".into());
        let get = |more: &str| ask(at, &format!("GET /metrics HTTP/1.1\r\n{more}\r\n"));
        let said = get("");
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        assert!(said.ends_with("\r\n\r\nOpen page"), "{said}");
        assert!(get("Accept: text/plain;version=0.0.4;q=1\r\n").ends_with("Classic page"));
        let both = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
        assert!(get(both).ends_with("Open page"));
        let head = ask(at, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 9\r\n") && head.ends_with("\r\n\r\n"));
    }

    #[test]
    fn what_is_not_a_request_for_metrics_gets_a_status() {
        let (at, made) = server("page".into());
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metricsx HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("\r\n\r\n", "405"),
            (&"x".repeat(LONGEST), "431"),
        ] {
            let said = ask(at, request);
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        }
        assert_eq!(made.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn those_who_say_nothing_keep_nobody_out_and_many_share_an_answer() {
        let (at, made) = server("x".repeat(100_000));
        let silent: Vec<TcpStream> = (0..2 * CLIENTS)
            .map(|_| TcpStream::connect(at).unwrap())
            .collect();
        for mut half in &silent {
            let _ = half.write_all(b"GET /metrics HTTP/1.1\r\n");
        }
        for _ in 0..5 {
            assert!(ask(at, "GET /metrics HTTP/1.1\r\n\r\n").ends_with('x'));
        }
        // The others have been let go of.
        let gone = silent.iter().filter(|stream| {
            stream.set_nonblocking(true).unwrap();
            let mut stream = *stream;
            !matches!(stream.read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
        });
        assert!(gone.count() >= CLIENTS);
        assert!(made.load(Ordering::Relaxed) <= 5);
    }
}
