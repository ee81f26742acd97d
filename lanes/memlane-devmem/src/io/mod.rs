//! Descriptors: regions that are bound, streams, and the paths by which payload comes.

mod binding;
mod coming;
pub mod copy;
mod desk;
pub mod kernel;
pub mod lane;
mod laned;
mod loan;
mod mapped;
pub mod path;
mod shared;
pub mod stage;
mod staged;
mod stream;
mod ways;
pub mod zcrx;

pub use binding::{Binding, BindingCounts};
pub use desk::Desk;
pub use loan::Loan;
pub use path::Path;
pub use shared::Owned;
pub use stream::{Stream, StreamCounts, Terms};
pub use ways::Wait;
