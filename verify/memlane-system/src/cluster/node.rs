//! A node.

/// A node.
#[derive(Debug)]
pub struct Node;

impl Node {
    /// Its name.
    pub const NAME: &'static str = "node";
}
