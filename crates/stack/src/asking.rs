//! Asking others, and what their refusals mean here.

use holdfast_components::{Asker, ComponentError, Patience, Refusal};
use std::time::Duration;

/// How long anybody waits for anybody. Long, for slow disks; finite, so that a component that hangs is noticed.
const WAIT: Duration = Duration::from_secs(120);

/// Every component's own name: its program. Alias 0 is its process.
pub(crate) const ITSELF: u16 = 1;

/// Asks, in the name of the component's program.
pub(crate) fn ask<Q, A>(asker: &Asker<Q, A>, question: &Q) -> Result<A, Refusal>
where
    Q: borsh::BorshSerialize,
    A: borsh::BorshDeserialize,
{
    asker.ask(ITSELF, question, Patience::of(WAIT)).map_err(refusal)
}

/// The same, with files that come back.
pub(crate) fn ask_for_files<Q, A>(
    asker: &Asker<Q, A>,
    alias: u16,
    question: &Q,
) -> Result<(A, Vec<std::os::fd::OwnedFd>), Refusal>
where
    Q: borsh::BorshSerialize,
    A: borsh::BorshDeserialize,
{
    let ticket = asker.start(alias, question, &[], Patience::of(WAIT)).map_err(refusal)?;
    let reply = asker.finish(ticket, Patience::of(WAIT)).map_err(refusal)?;
    Ok((reply.body, reply.files))
}

/// What is told to whoever asked us: refusals of others as they are, everything else in words.
pub(crate) fn refusal(error: ComponentError) -> Refusal {
    match error {
        ComponentError::Refused { refusal, .. } => refusal,
        error => Refusal::Failed(error.to_string()),
    }
}

/// An answer that does not fit the question.
pub(crate) fn nonsense(from: &str) -> Refusal {
    Refusal::Failed(format!("{from} gave an answer to another question"))
}
