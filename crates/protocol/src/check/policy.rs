//! Which checks run. Shipped code has exactly one policy, [`Everything`]; only this crate's own tests can name
//! another, to show that each check is needed (`traces`).

/// A check that a test can leave out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// The floor is an element of the order.
    Floor,
    /// Log sizes and consistency proofs.
    Log,
    /// Vectors grow along the order.
    Order,
    /// The author's own number grows strictly.
    Strict,
    /// Nobody knows more of this device than it committed.
    OwnNumbers,
    /// Pending records must come true...
    PendingRecords,
    /// ...with the same contents.
    PendingHash,
    /// Abort records must come true.
    AbortedRecords,
    /// What is pending or dead is known to all that saw it.
    Reflection,
    /// Nothing saw a void number as committed.
    Void,
    /// Everything known is shown.
    Hidden,
    /// What was accepted stays.
    Memory,
    /// Tables in force do not go back.
    Tables,
    /// The membership is the superuser's.
    Warrants,
    /// What was lost by a restore does not come back.
    Epochs,
    /// Signatures verify.
    Signatures,
}

/// Says which checks run.
pub(super) trait Policy {
    fn on(&self, rule: Rule) -> bool;
}

/// All of them.
pub(super) struct Everything;

impl Policy for Everything {
    fn on(&self, _: Rule) -> bool {
        true
    }
}
