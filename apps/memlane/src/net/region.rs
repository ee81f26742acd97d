//! `into:REGION`: an end that splits headers off, and puts payload of the packets that a rule names into device memory.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use memlane_block::volume::Errno;
use memlane_devmem::io::Binding;
use memlane_devmem::region::{Access, Spec};
use memlane_packet::Part;
use memlane_packet_ends::split::rules::Rule;
use memlane_packet_ends::split::{
    DeviceMemory, OwnedFragment, Receiver, Split, SplitCounts, SplitEnd, Splitter, Terms,
};
use memlane_packet_ends::tally::Verdict;

use super::options::Options;
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::cli::values::size;
use crate::devmem::pattern::Pattern;
use crate::devmem::storage::bind;

/// What is put where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    region: Spec,
    rules: Vec<Rule>,
    chunk: u64,
    unchecked: bool,
    validate: Option<u8>,
    output: Option<PathBuf>,
}

impl Target {
    pub(super) fn read(region: &str, options: &Options<'_>) -> Result<Target, String> {
        let rules = options.text("flow")?.ok_or(
            "into: wants to know whose payload: into:REGION?flow=udp dst *:9000 (several: with ;)",
        )?;
        let rule = |text: &str| text.parse::<Rule>().map_err(|error| error.to_string());
        let validate = options.number("validate", 2..=255)?;
        Ok(Target {
            region: region.parse().map_err(|error| format!("{error}"))?,
            rules: rules.split(';').map(rule).collect::<Result<_, _>>()?,
            chunk: options.text("chunk")?.map_or(Ok(4096), size)?,
            unchecked: options.flag("unchecked")?,
            validate: validate.and_then(|n| u8::try_from(n).ok()),
            output: options.text("output")?.map(PathBuf::from),
        })
    }

    pub(super) fn open(&self, label: &str) -> anyhow::Result<SplitEnd<Device, Looks>> {
        let terms = Terms {
            region: 0,
            chunk: usize::try_from(self.chunk).unwrap_or(usize::MAX),
            unchecked: self.unchecked,
        };
        // Its chunks are the splitter's; those of the binding are not used.
        let binding = bind(&self.region, 4096)?;
        let device = Device(Arc::clone(&binding));
        let splitter = Splitter::new(device, self.rules.clone(), terms);
        let splitter = splitter.map_err(|why| fail(Exit::Usage, format!("{label}: {why}")))?;
        let create =
            |path: &PathBuf| File::create(path).with_context(|| path.display().to_string());
        let looks = Looks {
            label: label.to_owned(),
            binding,
            validate: self.validate,
            output: self.output.as_ref().map(create).transpose()?,
            seen: Vec::new(),
            verdict: Verdict::default(),
            failed: None,
        };
        Ok(SplitEnd::new(splitter, looks))
    }
}

/// A region, as the packet lane has device memory.
#[derive(Debug)]
pub(super) struct Device(Arc<Binding>);

impl DeviceMemory for Device {
    fn len(&self) -> usize {
        self.0.region().len()
    }

    fn write(&mut self, at: usize, from: &Part<'_>) -> Result<(), Errno> {
        let region = self.0.region();
        if !region.is_mapped() {
            // One more copy, for memory that the CPU cannot reach.
            let mut bytes = vec![0; from.len()];
            from.copy_out(0, &mut bytes);
            return region.write(at as u64, &bytes).map_err(|_| Errno::INVAL);
        }
        let copied = region.cpu(Access::Write, |bytes| {
            // SAFETY: `from` has `from.len()` bytes, and is alive, which its maker has seen to.
            unsafe { bytes.copy_in(at, from.as_ptr(), from.len()) }
        })?;
        copied.then_some(()).ok_or(Errno::INVAL)
    }
}

/// Who looks at fragments by the CPU, if that was asked for; after that they are free.
#[derive(Debug)]
pub(super) struct Looks {
    label: String,
    binding: Arc<Binding>,
    validate: Option<u8>,
    output: Option<File>,
    seen: Vec<u8>,
    /// Packets with the pattern's bytes (good), with others (changed), and frames that were not split (strange).
    verdict: Verdict,
    /// What went wrong first.
    failed: Option<String>,
}

impl Looks {
    /// Each packet begins the pattern anew.
    fn look(&mut self, held: &[OwnedFragment]) -> anyhow::Result<()> {
        let mut pattern = self.validate.map(Pattern::new);
        let mut right = true;
        for held in held {
            let fragment = held.fragment();
            self.seen.resize(fragment.len, 0);
            let at = fragment.offset as u64;
            self.binding.region().read(at, &mut self.seen)?;
            if let Some(pattern) = &mut pattern {
                right &= pattern.check(&self.seen).is_ok();
            }
            if let Some(output) = &mut self.output {
                output.write_all(&self.seen).context("output")?;
            }
        }
        self.verdict.good += u64::from(right);
        self.verdict.changed += u64::from(!right);
        Ok(())
    }
}

impl Receiver for Looks {
    fn take(&mut self, split: &Split<'_>, held: &mut Vec<OwnedFragment>) {
        if split.whole.is_some() {
            self.verdict.strange += 1;
            return;
        }
        if self.validate.is_none() && self.output.is_none() {
            return;
        }
        if let Err(error) = self.look(held) {
            self.failed.get_or_insert_with(|| format!("{error:#}"));
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        self.validate.map(|_| self.verdict)
    }

    fn over(&mut self, counts: SplitCounts) {
        let whole = [
            ("no rule names them", counts.no_match),
            ("pieces of packets", counts.fragmented),
            ("packets within packets", counts.encapsulated),
            ("torn", counts.torn),
            (
                "nobody vouches for their checksum (unchecked)",
                counts.unchecked,
            ),
            ("no chunk was free", counts.no_chunk),
            ("the device refused", counts.device),
        ];
        let whole = whole.iter().filter(|(_, count)| *count > 0);
        let whole: String = whole
            .map(|(why, n)| format!("; {n} whole: {why}"))
            .collect();
        let failed = self.failed.as_ref();
        let failed = failed.map_or(String::new(), |why| format!("; failed: {why}"));
        out::note(&format!(
            "{}: {} packets split, {} bytes to the region, {} to host memory{whole}{failed}",
            self.label, counts.split, counts.device_bytes, counts.host_bytes
        ));
    }
}
