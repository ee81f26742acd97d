//! A plugin of the container runtime (NRI, the Node Resource Interface): it keeps what an image preloads itself.
//!
//! API servers do not see images, so a webhook that sets `LD_PRELOAD` in a pod hides what the image has there. The runtime knows
//! both, and asks its plugins about each container before it makes it. Where the webhook has left the variable alone, this
//! plugin adds memlane's library to whatever is in it.
//!
//! The plugin is never in the way of a container. It answers at once from the question alone, never with an error; and a runtime
//! that gets no answer, because the plugin is stopped or its connection has ended, makes the container as it is (containerd:
//! after two seconds, once, as it then forgets the plugin).
//!
//! | module | what it does |
//! |---|---|
//! | `answers` | decides; no side effects |
//! | `messages` | the fields of NRI's messages that are needed |
//! | `wire` | frames on the socket; no side effects |

mod answers;
mod messages;
mod wire;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use self::answers::{Event, answer};
use self::messages::{RUNTIME, RegisterPlugin, Request, Response};
pub use self::wire::WireError;
use self::wire::{ALL_SENT, Frame, Frames, Line, REQUEST, RESPONSE};
use crate::metrics::Metrics;

/// The plugin's name and place: the last one, after all that may set `LD_PRELOAD`, too.
const NAME: &str = "memlane";
const INDEX: &str = "99";
/// The one call of the plugin's.
const REGISTRATION: u32 = 1;
/// How long the runtime may take until it knows the plugin. It takes in one plugin at a time, and waits for each of them.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait after a connection that did not come about, or that lasted.
const SHORT: Duration = Duration::from_millis(200);
/// How long to wait at most after connections that ended soon: the runtime tells each time all containers that it has.
const LONG: Duration = Duration::from_secs(30);

/// Why a connection to the runtime has ended.
#[derive(Debug)]
pub enum NriError {
    /// There is no socket, or nobody listens there.
    Absent(io::Error),
    /// It broke.
    Io(io::Error),
    /// The runtime has closed it.
    Closed,
    /// The runtime does not want the plugin.
    Refused(String),
    /// The runtime did not answer.
    Slow,
    /// What came is no frame.
    Wire(WireError),
    /// What came is no message.
    Malformed(&'static str),
}

impl fmt::Display for NriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NriError::Absent(error) | NriError::Io(error) => write!(f, "{error}"),
            NriError::Closed => f.write_str("the runtime has closed the connection"),
            NriError::Refused(why) => write!(f, "the runtime refuses the plugin: {why}"),
            NriError::Slow => write!(f, "the runtime took longer than {PATIENCE:?}"),
            NriError::Wire(error) => write!(f, "the runtime sent {error}"),
            NriError::Malformed(what) => write!(f, "the runtime sent {what}"),
        }
    }
}

impl std::error::Error for NriError {}

/// The runtime's socket, and whether the runtime knows the plugin.
pub struct Nri {
    socket: PathBuf,
    metrics: Arc<Metrics>,
    known: watch::Sender<State>,
}

/// Whether the runtime knows the plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The plugin connects to it at this moment, or soon.
    Connecting,
    /// It does.
    Known,
    /// There is no runtime that would ask it.
    Absent,
}

/// Whether the runtime knows the plugin: for those who must not be faster than the plugin.
#[derive(Clone, Debug)]
pub struct Known(watch::Receiver<State>);

impl Known {
    /// Waits while the plugin connects to the runtime, `patience` at most.
    pub async fn decided(&self, patience: Duration) {
        let mut state = self.0.clone();
        let decided = state.wait_for(|state| *state != State::Connecting);
        let _ = timeout(patience, decided).await;
    }
}

impl Nri {
    /// A plugin for the runtime that listens at this path. It need not be there yet.
    #[must_use]
    pub fn new(socket: &Path, metrics: Arc<Metrics>) -> Nri {
        Nri {
            socket: socket.to_path_buf(),
            metrics,
            known: watch::Sender::new(State::Connecting),
        }
    }

    /// Whether the runtime knows the plugin, to be looked at later.
    pub fn known(&self) -> Known {
        Known(self.known.subscribe())
    }

    /// Answers the runtime, for ever: after a connection that ended, there is another one.
    pub async fn serve(self) {
        let mut pause = SHORT;
        let mut said = String::new();
        loop {
            let begin = Instant::now();
            let Err(error) = self.talk().await;
            self.tell(match error {
                NriError::Closed | NriError::Io(_) => State::Connecting,
                _ => State::Absent,
            });
            let lasted = begin.elapsed() > LONG;
            pause = match error {
                NriError::Absent(_) => SHORT,
                _ if lasted => SHORT,
                _ => LONG.min(pause * 2),
            };
            let text = error.to_string();
            // A runtime that is not there is not news each second.
            if text != said || lasted {
                let socket = self.socket.display();
                eprintln!(
                    "memlane-csi: {socket}: {text}. New containers have no lane until it works again"
                );
            }
            said = text;
            sleep(pause).await;
        }
    }

    /// One connection, until it ends.
    async fn talk(&self) -> Result<std::convert::Infallible, NriError> {
        let connected = UnixStream::connect(&self.socket).await;
        let mut stream = connected.map_err(NriError::Absent)?;
        self.tell(State::Connecting);
        let mut talk = Talk::default();
        stream
            .write_all(&registration())
            .await
            .map_err(NriError::Io)?;
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = vec![0; 16 << 10];
        loop {
            let more = stream.read(&mut bytes);
            let read = match talk.is_known {
                true => more.await,
                false => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    timeout(left, more).await.map_err(|_| NriError::Slow)?
                }
            };
            let read = read.map_err(NriError::Io)?;
            if read == 0 {
                return Err(NriError::Closed);
            }
            let (answers, events) = talk.hear(&bytes[..read])?;
            stream.write_all(&answers).await.map_err(NriError::Io)?;
            for event in events {
                self.note(event);
            }
        }
    }

    fn note(&self, event: Event) {
        match event {
            Event::Container(outcome) => self.metrics.made_container(outcome.word()),
            Event::Synchronized => {
                eprintln!(
                    "memlane-csi: {}: the runtime knows the plugin",
                    self.socket.display()
                );
                self.tell(State::Known);
            }
            Event::Other => {}
        }
    }

    fn tell(&self, state: State) {
        self.metrics.runtime_knows_plugin(state == State::Known);
        self.known.send_replace(state);
    }
}

fn registration() -> Vec<u8> {
    let plugin = RegisterPlugin {
        name: NAME.to_owned(),
        index: INDEX.to_owned(),
    };
    let request = Request {
        service: RUNTIME.to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: plugin.encode_to_vec(),
    };
    let frame = Frame {
        line: Line::ToRuntime,
        call: REGISTRATION,
        kind: REQUEST,
        flags: ALL_SENT,
        payload: request.encode_to_vec(),
    };
    frame.bytes()
}

/// What was heard on a connection.
#[derive(Default)]
struct Talk {
    frames: Frames,
    is_known: bool,
}

impl Talk {
    /// What is to be sent after these bytes, and what they meant.
    fn hear(&mut self, bytes: &[u8]) -> Result<(Vec<u8>, Vec<Event>), NriError> {
        let (mut answers, mut events) = (Vec::new(), Vec::new());
        for frame in self.frames.read(bytes).map_err(NriError::Wire)? {
            match frame.line {
                Line::ToPlugin => {
                    let (bytes, event) = called(frame)?;
                    answers.extend(bytes);
                    self.is_known |= event == Event::Synchronized;
                    events.push(event);
                }
                Line::ToRuntime => registered(&frame)?,
            }
        }
        Ok((answers, events))
    }
}

/// A call of the runtime's; the answer's bytes.
fn called(frame: Frame) -> Result<(Vec<u8>, Event), NriError> {
    if frame.kind != REQUEST {
        return Err(NriError::Malformed("something else than a call"));
    }
    let request = Request::decode(frame.payload.as_slice());
    let request = request.map_err(|_| NriError::Malformed("a call that cannot be read"))?;
    let answer = answer(&request);
    let response = Frame {
        kind: RESPONSE,
        flags: 0,
        payload: answer.response.encode_to_vec(),
        ..frame
    };
    Ok((response.bytes(), answer.event))
}

/// What the runtime says to the registration.
fn registered(frame: &Frame) -> Result<(), NriError> {
    if (frame.kind, frame.call) != (RESPONSE, REGISTRATION) {
        return Err(NriError::Malformed("an answer that nobody waits for"));
    }
    let response = Response::decode(frame.payload.as_slice());
    let response = response.map_err(|_| NriError::Malformed("an answer that cannot be read"))?;
    match response.status {
        Some(status) if status.code != 0 => {
            let why: String = status.message.chars().take(200).collect();
            Err(NriError::Refused(why.escape_debug().to_string()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
