//! What this machine can do: memory and paths, each with the reason for a no.

use crate::io::Path;
use crate::io::kernel::{Interface, Missing, missing, missing_to_send};
use crate::region::{DeviceRegion, RegionKind, Spec};

/// One thing, and whether it is here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// As flags name it: `udmabuf`, `mapped`.
    pub name: String,
    /// What it is.
    pub what: &'static str,
    /// What speaks against it; empty: it is here.
    pub lacks: Vec<String>,
}

impl Finding {
    /// Is it here?
    pub fn is_here(&self) -> bool {
        self.lacks.is_empty()
    }
}

/// Bytes of the regions that are made to see whether they can be.
const TRIED: usize = 2 << 20;

/// Kinds of memory. Each is made once, small, and given back.
pub fn memory() -> Vec<Finding> {
    let mut kinds = vec![
        (RegionKind::Memfd, "pages of this process"),
        (RegionKind::Hugetlb, "huge pages"),
        (RegionKind::Udmabuf, "a memfd that devices can be given"),
    ];
    let heaps = heaps();
    let heaps = if heaps.is_empty() {
        vec!["system".to_owned()]
    } else {
        heaps
    };
    let of_heap = |name| {
        (
            RegionKind::DmaHeap(name),
            "the kernel's allocator for devices",
        )
    };
    kinds.extend(heaps.into_iter().map(of_heap));
    kinds.extend((0..devices()).map(|n| (RegionKind::Cuda(n), "memory of NVIDIA's device")));
    let tried = kinds.into_iter().map(|(kind, what)| {
        let name = kind.to_string();
        let made = DeviceRegion::create(&Spec { kind, bytes: TRIED });
        let lacks = made.err().map(|error| error.to_string());
        Finding {
            name,
            what,
            lacks: lacks.into_iter().collect(),
        }
    });
    tried.collect()
}

/// CUDA's; one, if there is none: then it is said why.
fn devices() -> u32 {
    #[cfg(feature = "cuda")]
    let found = crate::cuda::Driver::find().map_or(0, crate::cuda::Driver::count);
    #[cfg(not(feature = "cuda"))]
    let found = 0;
    found.max(1)
}

fn heaps() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/dma_heap").into_iter().flatten();
    let names = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Paths, the best first. The kernel's is tried on `interface`, or on all that there are.
pub fn paths(interface: Option<&Interface>) -> Vec<Finding> {
    let mut found = Vec::new();
    for path in Path::ALL {
        let lacks = match path {
            Path::Kernel => by_any(interface, |one| texts(missing(one))),
            Path::Zcrx => by_any(interface, crate::io::zcrx::lacks),
            Path::Lane | Path::Mapped | Path::Staged => Vec::new(),
        };
        found.push(Finding {
            name: path.name().into(),
            what: path.what(),
            lacks,
        });
    }
    // The one that also sends.
    found.insert(
        1,
        Finding {
            name: "kernel-send".into(),
            what: "device-memory TCP: the interface reads from the device",
            lacks: by_any(interface, |one| texts(missing_to_send(one))),
        },
    );
    found
}

fn texts(missing: Vec<Missing>) -> Vec<String> {
    missing.iter().map(ToString::to_string).collect()
}

/// Nothing, if one interface lacks nothing.
fn by_any(
    interface: Option<&Interface>,
    missing: impl Fn(&Interface) -> Vec<String>,
) -> Vec<String> {
    let tried = match interface {
        Some(interface) => vec![interface.clone()],
        None => Interface::all(),
    };
    let mut lacks: Vec<String> = Vec::new();
    for interface in tried {
        let missing = missing(&interface);
        if missing.is_empty() {
            return Vec::new();
        }
        for text in missing {
            if !lacks.contains(&text) {
                lacks.push(text);
            }
        }
    }
    if lacks.is_empty() {
        lacks.push("there is no interface".into());
    }
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_no_has_a_reason() {
        let ways = paths(None);
        for path in Path::ALL {
            let rows = ways.iter().filter(|found| found.name == path.name());
            assert_eq!(rows.count(), 1, "{path}");
        }
        let found = memory().into_iter().chain(ways);
        for finding in found {
            for why in &finding.lacks {
                assert!(why.len() > 10, "{}: {why}", finding.name);
            }
        }
        assert!(memory()[0].is_here(), "a memfd is everywhere");
    }
}
