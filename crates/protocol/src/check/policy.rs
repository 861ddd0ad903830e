//! Which checks run. Shipped code has exactly one policy, [`AllRules`]. Only this crate's tests can name
//! another, to prove that each check is needed (`traces`).

/// A check that a test can switch off.
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
    /// Nobody knows of more operations of this device than it committed.
    OwnNumbers,
    /// An operation that was recorded as pending is still in the view.
    PendingRecords,
    /// An operation that was recorded as pending still has the same forecast.
    PendingHash,
    /// An operation that was recorded as aborted stays aborted.
    AbortedRecords,
    /// Every operation that saw another one as pending or dead has a record of it.
    Reflection,
    /// No operation saw a void number as committed.
    Void,
    /// Every operation that another one knows of is in the view.
    Hidden,
    /// Operations that were accepted before are still in the view.
    Memory,
    /// Tables in force do not go back.
    Tables,
    /// The membership is the superuser's.
    Warrants,
    /// Operations that a restore lost do not come back.
    Epochs,
    /// Signatures verify.
    Signatures,
}

/// Which checks run. Everything that ships runs all of them; tests switch some off.
pub(super) trait Policy {
    fn on(&self, rule: Rule) -> bool;
}

/// Runs all checks.
pub(super) struct AllRules;

impl Policy for AllRules {
    fn on(&self, _: Rule) -> bool {
        true
    }
}
