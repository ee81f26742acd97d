//! A Prometheus endpoint: `GET /metrics`. What is shown there is said by each verb.

mod http;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub(crate) use http::{Format, serve as serve_text};

pub(crate) type Labels = Vec<(String, String)>;
/// One value with its labels.
pub(crate) type Value = (Labels, u64);

/// Listens; each request gets what `page` gives at about that moment. Says where.
pub(crate) fn serve(
    at: SocketAddr,
    page: impl Fn() -> Registry + Send + 'static,
) -> io::Result<SocketAddr> {
    serve_text(at, move |format| text(&[page()], format))
}

/// All of them on one page: no two may have a family in common.
pub(crate) fn text(registries: &[Registry], format: Format) -> String {
    const END: &str = "# EOF\n";
    let mut text = String::new();
    for registry in registries {
        // A String takes everything.
        let _ = encode(&mut text, registry);
        text.truncate(text.strip_suffix(END).map_or(text.len(), str::len));
    }
    match format {
        Format::Open => text + END,
        Format::Classic => classic(&text),
    }
}

/// In the older format a counter's family has the name of its samples.
fn classic(text: &str) -> String {
    let of_type = |line: &str| -> Option<String> {
        let rest = line.strip_prefix("# TYPE ")?;
        rest.strip_suffix(" counter").map(str::to_owned)
    };
    let counters: HashSet<String> = text.lines().filter_map(of_type).collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let head = [words.next(), words.next(), words.next()];
        match (head, words.next()) {
            ([Some("#"), Some(what), Some(name)], Some(rest)) if counters.contains(name) => {
                out.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// Labels that all values of a thing have, and those of one.
pub(crate) fn labels(these: &[(&str, &str)], more: &[(&str, &str)]) -> Labels {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    these.iter().chain(more).map(owned).collect()
}

/// A family of what only grows.
pub(crate) fn counters(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl Iterator<Item = Value>,
) {
    let family = Family::<Labels, Counter>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).inc_by(value);
    }
    registry.register(name, help, family);
}

/// A family of what goes up and down.
pub(crate) fn gauges(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl Iterator<Item = Value>,
) {
    let family = Family::<Labels, Gauge<u64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    registry.register(name, help, family);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_older_format_a_family_has_the_name_of_its_samples() {
        let mut registry = Registry::with_prefix("memlane");
        let value = |n| std::iter::once((labels(&[("a", "b \" c")], &[]), n));
        counters(&mut registry, "bytes", "Some", value(3));
        gauges(&mut registry, "up", "Another", value(1));
        let one = || [std::mem::take(&mut Registry::default())];
        assert_eq!(text(&one(), Format::Open), "# EOF\n");
        assert_eq!(text(&one(), Format::Classic), "");
        let expected = "# HELP memlane_bytes_total Some.\n# TYPE memlane_bytes_total counter\n\
                        memlane_bytes_total{a=\"b \\\" c\"} 3\n\
                        # HELP memlane_up Another.\n# TYPE memlane_up gauge\n\
                        memlane_up{a=\"b \\\" c\"} 1\n";
        assert_eq!(text(&[registry], Format::Classic), expected);
    }
}
