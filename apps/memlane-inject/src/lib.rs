//! How memlane gets into programs that nobody starts with `memlane run`: containers, services and pods.
//!
//! [`edits`] is the one description of what such a program needs. `memlane` writes it as a CDI file for container engines and
//! as drop-ins for systemd; `memlane-webhook` writes it into pods, with the list that [`preload`] makes. [`tree`] lays the library out so that one path is right in
//! every image.
//!
//! ```
//! use memlane_inject::{Edits, tree};
//!
//! let edits = Edits::of_a_lane_volume();
//! assert_eq!(edits.variables[0].1, format!("/opt/memlane/{}", tree::PRELOAD_IN_TREE));
//! ```

pub mod edits;
pub mod preload;
pub mod tree;

pub use edits::{Edits, Place};
