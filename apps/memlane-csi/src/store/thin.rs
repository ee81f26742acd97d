//! Volumes as thin logical volumes, by the tools of lvm2.
//!
//! A volume's folder only says what was asked for; its data is the logical volume of the same name. The server opens it by a
//! device node in the node's folder. Numbers of device nodes change when the machine restarts, so a store that is opened
//! makes them anew.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tonic::Status;

use super::backing::{Backing, Capacity};
use super::failed;
use crate::command::run;

/// A thin pool of a volume group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    group: String,
    pool: String,
}

impl std::str::FromStr for Pool {
    type Err = String;

    /// Reads `VG/POOL`.
    fn from_str(text: &str) -> Result<Pool, String> {
        let (group, pool) = text.split_once('/').unwrap_or((text, ""));
        // What lvm(8) allows in names.
        let fits = |name: &str| {
            !name.is_empty() && !name.starts_with(['-', '.']) && crate::text::is_plain(name, "+_.-")
        };
        match fits(group) && fits(pool) {
            true => Ok(Pool {
                group: group.to_owned(),
                pool: pool.to_owned(),
            }),
            false => Err("VG/POOL is needed".to_owned()),
        }
    }
}

/// A volume is a thin logical volume. Copies share blocks.
pub struct Thin {
    pool: Pool,
    /// Bytes of which sizes are multiples.
    extent: u64,
}

impl Thin {
    /// Volumes in a pool, which must be there.
    ///
    /// # Errors
    /// It is not, or the tools are missing.
    pub fn new(pool: Pool) -> Result<Thin, String> {
        let words = [
            "vgs",
            "--noheadings",
            "--units",
            "b",
            "--nosuffix",
            "-o",
            "vg_extent_size",
        ];
        let extent = lvm(&[&words[..], &[pool.group.as_str()]].concat())?;
        let extent = extent.trim();
        let thin = Thin {
            extent: extent
                .parse()
                .map_err(|_| format!("vgs: extents of {extent:?} bytes"))?,
            pool,
        };
        let name = format!("{}/{}", thin.pool.group, thin.pool.pool);
        match thin.field(&name, "segtype")?.as_deref() {
            Some("thin-pool") => Ok(thin),
            _ => Err(format!("{name} is not a thin pool")),
        }
    }

    /// `VG/NAME` of the volume in this folder.
    fn volume(&self, folder: &Path) -> String {
        let name = folder.file_name().unwrap_or_default().display();
        format!("{}/{name}", self.pool.group)
    }

    fn device(&self, folder: &Path) -> PathBuf {
        Path::new("/dev").join(self.volume(folder))
    }

    /// A field of `lvs`. `None`: there is no such volume.
    fn field(&self, name: &str, field: &str) -> Result<Option<String>, String> {
        // All volumes of the group, as lvs fails alike for one that is missing and for a broken group.
        let fields = format!("lv_full_name,{field}");
        let words = [
            "lvs",
            "--noheadings",
            "--units",
            "b",
            "--nosuffix",
            "-o",
            &fields,
            "-a",
        ];
        let said = lvm(&[&words[..], &[self.pool.group.as_str()]].concat())?;
        let mut rows = said.lines().map(str::split_whitespace);
        let found = rows.find_map(|mut row| {
            let full = row.next()?;
            let is_it = full.trim_matches(['[', ']']) == name;
            is_it.then(|| row.next().unwrap_or_default().to_owned())
        });
        Ok(found)
    }

    fn number(&self, name: &str, field: &str) -> Result<u64, Status> {
        let said = self.field(name, field).map_err(Status::internal)?;
        let said = said.ok_or_else(|| Status::data_loss(format!("{name} is not there")))?;
        said.parse()
            .map_err(|_| Status::internal(format!("lvs: {field} of {name} is {said:?}")))
    }

    fn exists(&self, name: &str) -> Result<bool, Status> {
        let found = self.field(name, "lv_name").map_err(Status::internal)?;
        Ok(found.is_some())
    }
}

/// Runs one of the tools.
fn lvm(words: &[&str]) -> Result<String, String> {
    run(Path::new("lvm"), words)
}

/// Runs a tool that needs room.
fn change(words: &[&str]) -> Result<(), Status> {
    lvm(words).map(drop).map_err(|why| {
        match why.contains("free space") || why.contains("nsufficient") {
            true => Status::resource_exhausted(why),
            false => Status::internal(why),
        }
    })
}

impl Backing for Thin {
    fn rounded(&self, size: u64) -> u64 {
        size.checked_next_multiple_of(self.extent).unwrap_or(size)
    }

    fn activate(&self) -> Result<(), Status> {
        change(&["vgchange", "-q", "-ay", &self.pool.group])
    }

    fn make(&self, folder: &Path, size: u64) -> Result<(), Status> {
        self.discard(folder)?;
        let Pool { group, pool } = &self.pool;
        let volume = self.volume(folder);
        let name = volume.strip_prefix(&format!("{group}/")).unwrap_or(&volume);
        let (size, pool) = (format!("{size}b"), format!("{group}/{pool}"));
        change(&[
            "lvcreate",
            "-q",
            "-y",
            "-V",
            &size,
            "--thinpool",
            &pool,
            "-n",
            name,
        ])
    }

    fn copy(&self, from: &Path, folder: &Path, size: u64, _in_use: bool) -> Result<(), Status> {
        self.discard(folder)?;
        let (source, volume) = (self.volume(from), self.volume(folder));
        let group = format!("{}/", self.pool.group);
        let name = volume.strip_prefix(&group).unwrap_or(&volume);
        // -kn: it is activated like any other volume.
        change(&[
            "lvcreate", "-q", "-y", "-s", "-kn", "-ay", "-n", name, &source,
        ])?;
        match self.size(folder)? < size {
            true => self.grow(folder, size),
            false => Ok(()),
        }
    }

    fn grow(&self, folder: &Path, size: u64) -> Result<(), Status> {
        let (size, volume) = (format!("{size}b"), self.volume(folder));
        change(&["lvextend", "-q", "-y", "-L", &size, &volume])
    }

    fn size(&self, folder: &Path) -> Result<u64, Status> {
        self.number(&self.volume(folder), "lv_size")
    }

    fn give(&self, folder: &Path, name: &Path) -> Result<(), Status> {
        let device = self.device(folder);
        let fail = |error: io::Error| failed("publishing", &device, &error);
        let number = fs::metadata(&device).map_err(fail)?.rdev();
        match fs::symlink_metadata(name) {
            Ok(node) if node.file_type().is_block_device() && node.rdev() == number => {
                return Ok(());
            }
            // The number of an earlier run of the machine.
            Ok(_) => fs::remove_file(name).map_err(fail)?,
            Err(_) => {}
        }
        mknodat(
            CWD,
            name,
            FileType::BlockDevice,
            Mode::RUSR | Mode::WUSR,
            number,
        )
        .map_err(|error| fail(error.into()))
    }

    fn discard(&self, folder: &Path) -> Result<(), Status> {
        let volume = self.volume(folder);
        match self.exists(&volume)? {
            true => change(&["lvremove", "-q", "-y", &volume]),
            false => Ok(()),
        }
    }

    fn capacity(&self) -> Result<Capacity, Status> {
        let pool = format!("{}/{}", self.pool.group, self.pool.pool);
        let total = self.number(&pool, "lv_size")?;
        let used = self
            .field(&pool, "data_percent")
            .map_err(Status::internal)?;
        let used: f64 = used.and_then(|used| used.parse().ok()).unwrap_or(100.0);
        // A hundredth of a percent is what lvs tells.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let hundredths = (used.clamp(0.0, 100.0) * 100.0) as u64;
        Ok(Capacity {
            available: total / 10_000 * (10_000 - hundredths),
            total,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_with_its_group_and_is_no_option() {
        assert!("vg0/thin.pool".parse::<Pool>().is_ok());
        for wrong in ["", "vg0", "vg0/", "/pool", "-y/pool", "a/b/c", "a b/c"] {
            assert!(wrong.parse::<Pool>().is_err(), "{wrong}");
        }
    }
}
