//! Why an automounter does not mount something.

use holdfast_fuse::automount::Trouble;
use std::fmt::Display;

/// Why a name is not mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The error that programs get.
    pub trouble: Trouble,
    /// The explanation for people.
    pub why: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(trouble: Trouble, why: impl Display) -> Refusal {
        Refusal { trouble, why: why.to_string() }
    }
}
