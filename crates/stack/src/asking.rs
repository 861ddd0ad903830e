//! Sending requests to other components, and what their refusals mean.

use holdfast_components::{Asker, ComponentError, Patience, Refusal};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long a component waits for a reply. The time is long, because disks may be slow, and finite, so that a
/// component that hangs is noticed.
const WAIT: Duration = Duration::from_secs(120);

/// The code for a component that ended before it replied, so that the request may or may not have been
/// carried out.
pub(crate) const UNKNOWN: u32 = 1000;

/// The alias of a component's program. Alias 0 is its process.
pub(crate) const ITSELF: u16 = 1;

/// How often a request is repeated if the component that served it ended without answering.
const ATTEMPTS: usize = 3;

/// Sends a request under the name of the component's program. It must be one that can be carried out twice:
/// it is repeated if the reply was lost.
pub(crate) fn ask<Q, A>(asker: &Asker<Q, A>, question: &Q) -> Result<A, Refusal>
where
    Q: borsh::BorshSerialize,
    A: borsh::BorshDeserialize,
{
    ask_as(asker, ITSELF, question).map(|(answer, _)| answer)
}

/// Like [`ask`], under another alias; also returns the files that come with the reply.
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
    // A component that never replies must not occupy an entry for ever.
    asker.forget(ticket);
    let reply = reply.map_err(refusal)?;
    Ok((reply.body, reply.files))
}

/// Converts an error for this component's own caller: refusals stay as they are, other errors become text.
pub(crate) fn refusal(error: ComponentError) -> Refusal {
    match error {
        ComponentError::Refused { refusal, .. } => refusal,
        ComponentError::UnknownWhetherDone { .. } => Refusal::Code(UNKNOWN),
        error => Refusal::Failed(error.to_string()),
    }
}

/// The refusal for a reply that does not fit the request.
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
