//! Why an automounter does not mount something.

use holdfast_fuse::automount::Trouble;
use std::fmt::Display;

/// Why something is not mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What programs see.
    pub trouble: Trouble,
    /// What people are told.
    pub why: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(trouble: Trouble, why: impl Display) -> Refusal {
        Refusal { trouble, why: why.to_string() }
    }
}
