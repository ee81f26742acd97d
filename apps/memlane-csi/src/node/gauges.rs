//! The health of this node's volumes, for Prometheus.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Node;
use super::health::Health;

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge>;

impl Node {
    /// Registers the health of all staged volumes as it is at this moment.
    pub fn register_health(&self, registry: &mut Registry) {
        match self.all_health() {
            Ok(all) => register(&all, registry),
            Err(why) => eprintln!("memlane-csi: health of volumes: {}", why.message()),
        }
    }
}

fn register(all: &[Health], registry: &mut Registry) {
    let (accessible, troubles) = (Gauges::default(), Gauges::default());
    let (copies, left) = (Gauges::default(), Gauges::default());
    for health in all {
        let volume = ("volume", health.volume.clone());
        let of = |name, value: &str| vec![volume.clone(), (name, value.to_owned())];
        let is_accessible = !health.troubles.iter().any(|one| one.inaccessible);
        let gauge = accessible.get_or_create(&vec![volume.clone()]);
        gauge.set(is_accessible.into());
        for trouble in &health.troubles {
            let labels = of("reason", trouble.reason.name());
            troubles.get_or_create(&labels).set(1);
        }
        for (state, count) in [("in_sync", health.in_sync), ("wanted", health.copies)] {
            copies.get_or_create(&of("state", state)).set(count.into());
        }
        let bytes = i64::try_from(health.resync_left).unwrap_or(i64::MAX);
        left.get_or_create(&vec![volume.clone()]).set(bytes);
    }
    let help = "Whether pods of this node can read and write a staged volume";
    registry.register("volume_accessible", help, accessible);
    let help = "What is wrong with a staged volume";
    registry.register("volume_trouble", help, troubles);
    let help =
        "Copies of a staged volume: those that are up to date here, and those that there are to be";
    registry.register("volume_copies", help, copies);
    let help = "What has to be looked at until a copy that was away is up to date";
    registry.register_with_unit("volume_resync_left", help, Unit::Bytes, left);
}

#[cfg(test)]
mod tests {
    use super::super::health::{Reason, Trouble};
    use super::*;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn a_volume_is_shown_with_its_copies_and_with_what_is_wrong() {
        let health = Health {
            volume: "v-a@s".to_owned(),
            troubles: vec![Trouble {
                reason: Reason::ServerUnreachable,
                inaccessible: true,
                message: String::new(),
            }],
            copies: 1,
            in_sync: 0,
            resync_left: 4096,
        };
        let mut registry = Registry::with_prefix("memlane_csi");
        register(&[health], &mut registry);
        let mut page = String::new();
        encode(&mut page, &registry).expect("a page");
        for line in [
            "memlane_csi_volume_accessible{volume=\"v-a@s\"} 0",
            "memlane_csi_volume_trouble{volume=\"v-a@s\",reason=\"ServerUnreachable\"} 1",
            "memlane_csi_volume_copies{volume=\"v-a@s\",state=\"in_sync\"} 0",
            "memlane_csi_volume_copies{volume=\"v-a@s\",state=\"wanted\"} 1",
            "memlane_csi_volume_resync_left_bytes{volume=\"v-a@s\"} 4096",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }
}
