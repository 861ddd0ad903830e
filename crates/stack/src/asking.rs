//! Asking others, and what their refusals mean here.

use holdfast_components::{Asker, ComponentError, Patience, Refusal};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long a component waits for another. Long, for slow disks; finite, so that a component that hangs is
/// noticed.
const WAIT: Duration = Duration::from_secs(120);

/// The component that served the request ended before it answered.
pub(crate) const UNKNOWN: u32 = 1000;

/// Every component's own name: its program. Alias 0 is its process.
pub(crate) const ITSELF: u16 = 1;

/// How often a request is repeated if the component that served it ended without answering.
const ATTEMPTS: usize = 3;

/// Asks, in the name of the component's program. What this is for can be done twice: if the answer was lost, it is asked
/// again.
pub(crate) fn ask<Q, A>(asker: &Asker<Q, A>, question: &Q) -> Result<A, Refusal>
where
    Q: borsh::BorshSerialize,
    A: borsh::BorshDeserialize,
{
    ask_as(asker, ITSELF, question).map(|(answer, _)| answer)
}

/// As [`ask`], under another alias; also returns the files that come with the reply.
pub(crate) fn ask_as<Q, A>(
    asker: &Asker<Q, A>,
    alias: u16,
    question: &Q,
) -> Result<(A, Vec<OwnedFd>), Refusal>
where
    Q: borsh::BorshSerialize,
    A: borsh::BorshDeserialize,
{
    let mut answer = ask_once(asker, alias, question);
    for _ in 1..ATTEMPTS {
        if !matches!(answer, Err(Refusal::Code(UNKNOWN))) {
            break;
        }
        answer = ask_once(asker, alias, question);
    }
    answer
}

/// Sends a request that may not be carried out twice: the caller must handle [`UNKNOWN`].
pub(crate) fn ask_once<Q, A>(
    asker: &Asker<Q, A>,
    alias: u16,
    question: &Q,
) -> Result<(A, Vec<OwnedFd>), Refusal>
where
    Q: borsh::BorshSerialize,
    A: borsh::BorshDeserialize,
{
    let ticket = asker.start(alias, question, &[], Patience::of(WAIT)).map_err(refusal)?;
    let reply = asker.finish(ticket, Patience::of(WAIT));
    // A component that never answers must not occupy a place for ever.
    asker.forget(ticket);
    let reply = reply.map_err(refusal)?;
    Ok((reply.body, reply.files))
}

/// The refusal for our own caller: refusals of others as they are, everything else in words.
pub(crate) fn refusal(error: ComponentError) -> Refusal {
    match error {
        ComponentError::Refused { refusal, .. } => refusal,
        ComponentError::UnknownWhetherDone { .. } => Refusal::Code(UNKNOWN),
        error => Refusal::Failed(error.to_string()),
    }
}

/// The refusal for an answer that does not fit the request.
pub(crate) fn nonsense(from: &str) -> Refusal {
    Refusal::Failed(format!("{from} gave an answer to another question"))
}

/// A refusal in words, for people.
pub(crate) fn words(refusal: Refusal) -> String {
    match refusal {
        Refusal::Code(crate::host::BAD_BLOCK) => {
            "a block of it is not what was written last: it was changed by something else, or is damaged"
                .to_owned()
        }
        Refusal::Failed(words) => words,
        refusal => refusal.to_string(),
    }
}

impl From<Refusal> for crate::StackError {
    fn from(refusal: Refusal) -> crate::StackError {
        crate::StackError::Component(words(refusal))
    }
}
