//! What holds the data of volumes.

use std::path::Path;

use tonic::Status;

/// How much room a store has, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Free.
    pub available: u64,
    /// The largest volume that can ever be filled.
    pub total: u64,
}

/// What holds the data of volumes. Each volume and snapshot has a folder; its last component names it, and does not change
/// when the folder is moved.
pub trait Backing: Send + Sync {
    /// The size that data gets of which this size is wanted: the same, or a little more.
    fn rounded(&self, size: u64) -> u64;

    /// Makes what published names lead to usable again, after the machine was restarted.
    ///
    /// # Errors
    /// What failed.
    fn activate(&self) -> Result<(), Status>;

    /// Makes empty data of this size. Data of a call that was cut short may be there: it is replaced.
    ///
    /// # Errors
    /// `ResourceExhausted`, `OutOfRange`, or what failed.
    fn make(&self, folder: &Path, size: u64) -> Result<(), Status>;

    /// Makes data of this size that begins as a copy of another's, at one moment of it. `in_use`: somebody may write to the
    /// source meanwhile.
    ///
    /// # Errors
    /// `FailedPrecondition`: the source is in use, and cannot be copied at one moment.
    fn copy(&self, from: &Path, folder: &Path, size: u64, in_use: bool) -> Result<(), Status>;

    /// Makes data larger.
    ///
    /// # Errors
    /// `ResourceExhausted`, `OutOfRange`, or what failed.
    fn grow(&self, folder: &Path, size: u64) -> Result<(), Status>;

    /// The size in bytes.
    ///
    /// # Errors
    /// What failed.
    fn size(&self, folder: &Path) -> Result<u64, Status>;

    /// Gives the data another name, which the server opens. The name may be there.
    ///
    /// # Errors
    /// What failed.
    fn give(&self, folder: &Path, name: &Path) -> Result<(), Status>;

    /// Removes data that lies outside the folder. It may be gone.
    ///
    /// # Errors
    /// What failed.
    fn discard(&self, folder: &Path) -> Result<(), Status>;

    /// How much room there is.
    ///
    /// # Errors
    /// What failed.
    fn capacity(&self) -> Result<Capacity, Status>;
}
