//! Memory handed over by iceoryx2: samples are loaned and sent, received and dropped. Takes the arguments of `memlane-bench
//! peer hand` and prints the same. What is measured is its very source, `turns.rs`.
//!
//! Two publish-subscribe services for each size, one each way; a sample that is longer by one byte is the end. By
//! `iceoryx2` both ends look for samples without pause; by `iceoryx2-event` whoever sends notifies, and whoever waits
//! sleeps in a listener.

#[path = "../../../memlane-bench/src/hist.rs"]
mod hist;
#[path = "../../../memlane-bench/src/suites/sockets/native/turns.rs"]
mod turns;

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::{event, publish_subscribe};
use turns::{End, Turned};

type Data = publish_subscribe::PortFactory<ipc::Service, [u8], ()>;
type Bell = event::PortFactory<ipc::Service>;

/// For the other end to come.
const PATIENCE: Duration = Duration::from_secs(10);
/// Samples under way at a time: a megabyte, or four.
fn samples(bytes: usize) -> usize {
    ((1 << 20) / bytes).clamp(4, 256)
}

/// An answer to a stream is at least so long.
const LEAST: usize = 16;

struct Asked {
    serves: bool,
    sleeps: bool,
    handover: bool,
    /// Both ends have it: it names the services.
    at: String,
    bytes: Vec<usize>,
    seconds: f64,
}

fn main() -> anyhow::Result<()> {
    set_log_level(LogLevel::Error);
    let asked = asked()?;
    let mut told = Vec::new();
    for &bytes in &asked.bytes {
        let mut end = Ports::new(&asked, bytes)?;
        match (asked.serves, asked.handover) {
            (true, true) => turns::give_back(&mut end, bytes)?,
            (true, false) => turns::receive_all(&mut end, bytes)?,
            (false, _) => told.push(shown(bytes, &measure(&mut end, &asked, bytes)?)),
        }
        end.leave(&asked);
    }
    if !asked.serves {
        println!("[{}]", told.join(","));
    }
    Ok(())
}

fn measure(end: &mut Ports, asked: &Asked, bytes: usize) -> anyhow::Result<Turned> {
    let budget = Duration::try_from_secs_f64(asked.seconds).context("--seconds")?;
    let turned = match asked.handover {
        true => turns::give_and_take(end, bytes, budget),
        false => turns::carry(end, bytes, budget),
    };
    turned.with_context(|| format!("{bytes} bytes"))
}

fn shown(bytes: usize, turned: &Turned) -> String {
    let number = |value: Option<f64>| value.map_or("null".to_owned(), |value| value.to_string());
    format!(
        "{{\"bytes\":{bytes},\"bytes_per_second\":{},\"p50_ns\":{},\"p99_ns\":{},\"cpu_seconds\":null,\"seconds\":{}}}",
        turned.bytes_per_second,
        number(turned.p50_ns),
        number(turned.p99_ns),
        turned.seconds
    )
}

fn asked() -> anyhow::Result<Asked> {
    let mut words = std::env::args().skip(1);
    let role = words.next().context("server or client")?;
    let mut asked = Asked {
        serves: role == "server",
        sleeps: false,
        handover: true,
        at: String::new(),
        bytes: Vec::new(),
        seconds: 1.0,
    };
    while let Some(flag) = words.next() {
        let value = words.next().with_context(|| format!("{flag}: no value"))?;
        match flag.as_str() {
            "--by" => asked.sleeps = value == "iceoryx2-event",
            "--kind" => asked.handover = value == "handover",
            "--at" => asked.at = value,
            "--seconds" => asked.seconds = value.parse()?,
            "--bytes" => {
                let sizes = value.split(',').map(str::parse);
                asked.bytes = sizes.collect::<Result<_, _>>()?;
            }
            flag => bail!("{flag}?"),
        }
    }
    Ok(asked)
}

/// One end, for messages of one size.
struct Ports {
    bytes: usize,
    out: Publisher<ipc::Service, [u8], ()>,
    come: Subscriber<ipc::Service, [u8], ()>,
    bells: Option<(Notifier<ipc::Service>, Listener<ipc::Service>)>,
    there: Data,
    _node: Node<ipc::Service>,
}

impl Ports {
    fn new(asked: &Asked, bytes: usize) -> anyhow::Result<Ports> {
        let node = NodeBuilder::new().create::<ipc::Service>()?;
        let name = |way: &str| format!("memlane-bench{}/{bytes}/{way}", asked.at);
        let [forth, back] = [
            data(&node, &name("forth"), bytes)?,
            data(&node, &name("back"), bytes)?,
        ];
        let (there, here) = match asked.serves {
            true => (back, forth),
            false => (forth, back),
        };
        let come = here.subscriber_builder().create()?;
        let most = (bytes + 1).max(LEAST);
        let out = there.publisher_builder();
        let out = out
            .initial_max_slice_len(most)
            .max_loaned_samples(1)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()?;
        let bells = match asked.sleeps {
            false => None,
            true => Some(bells(&node, [&name("forth"), &name("back")], asked.serves)?),
        };
        until(|| there.dynamic_config().number_of_subscribers() == 1)?;
        until(|| here.dynamic_config().number_of_publishers() == 1)?;
        Ok(Ports {
            bytes,
            out,
            come,
            bells,
            there,
            _node: node,
        })
    }

    fn loaned(&mut self, bytes: usize, fill: Option<&[u8]>) -> anyhow::Result<()> {
        let mut sample = self.out.loan_slice_uninit(bytes)?;
        if let Some(from) = fill {
            // SAFETY: both are `bytes` long.
            unsafe {
                let to = sample.payload_mut().as_mut_ptr().cast::<u8>();
                std::ptr::copy_nonoverlapping(from.as_ptr(), to, bytes);
            }
        }
        // SAFETY: bytes of shared memory, zero or whatever was there before; they are numbers whatever they are.
        unsafe { sample.assume_init() }.send()?;
        if let Some((notifier, _)) = &self.bells {
            notifier.notify()?;
        }
        Ok(())
    }

    /// What comes next goes to `done`; `false`: that was the end.
    fn next(&mut self, bytes: usize, mut done: impl FnMut(&[u8])) -> anyhow::Result<bool> {
        loop {
            if let Some(sample) = self.come.receive()? {
                if sample.len() == self.bytes + 1 {
                    return Ok(false);
                }
                ensure!(sample.len() == bytes, "a sample of {} bytes", sample.len());
                done(&sample);
                return Ok(true);
            }
            match &mut self.bells {
                Some((_, listener)) => {
                    listener.timed_wait(|_| {}, Duration::from_secs(1))?;
                }
                None => std::hint::spin_loop(),
            }
        }
    }

    /// What is still under way must not go with its publisher: whoever has sent last leaves last.
    fn leave(self, asked: &Asked) {
        if asked.serves != asked.handover {
            let _ = until(|| self.there.dynamic_config().number_of_subscribers() == 0);
        }
    }
}

impl End for Ports {
    fn give(&mut self, bytes: usize) -> anyhow::Result<()> {
        self.loaned(bytes, None)
    }

    fn take(&mut self, bytes: usize) -> anyhow::Result<bool> {
        self.next(bytes, |_| {})
    }

    fn send(&mut self, from: &[u8]) -> anyhow::Result<()> {
        self.loaned(from.len(), Some(from))
    }

    fn receive(&mut self, into: &mut [u8]) -> anyhow::Result<bool> {
        self.next(into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.loaned(self.bytes + 1, None)
    }
}

fn data(node: &Node<ipc::Service>, name: &str, bytes: usize) -> anyhow::Result<Data> {
    let service = node.service_builder(&name.try_into()?);
    let service = service.publish_subscribe::<[u8]>();
    let service = service
        .max_publishers(1)
        .max_subscribers(1)
        .history_size(0)
        .subscriber_max_buffer_size(samples(bytes))
        .subscriber_max_borrowed_samples(1)
        .enable_safe_overflow(false);
    Ok(service.open_or_create()?)
}

fn bells(
    node: &Node<ipc::Service>,
    names: [&str; 2],
    serves: bool,
) -> anyhow::Result<(Notifier<ipc::Service>, Listener<ipc::Service>)> {
    let bell = |name: &str| -> anyhow::Result<Bell> {
        let service = node.service_builder(&name.try_into()?).event();
        Ok(service.open_or_create()?)
    };
    let [forth, back] = [bell(names[0])?, bell(names[1])?];
    let (there, here) = if serves { (back, forth) } else { (forth, back) };
    let listener = here.listener_builder().create()?;
    let notifier = there.notifier_builder().create()?;
    until(|| there.dynamic_config().number_of_listeners() == 1)?;
    Ok((notifier, listener))
}

/// Waits for the other end.
fn until(so: impl Fn() -> bool) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !so() {
        ensure!(begin.elapsed() < PATIENCE, "the other end does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
