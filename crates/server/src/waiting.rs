//! A [`ServerCore`] whose caller waits: does on the caller's own thread what [`crate::Driver`] does
//! asynchronously.
//!
//! This is for simulators, which have a clock of their own. A condition to wait for is checked again after
//! each call of `pause`, which sleeps, or lets virtual time pass, or says that the waiting is over.

use crate::server_core::{Caller, RequestOutcome, ServerCore};
use holdfast_protocol::message::{LockReply, Request, Response};

impl ServerCore {
    /// Answers any request except `Hello`. While the request has to wait, `pause` is called between checks.
    /// Once it returns `false`, the reply is the same as when the time is up; an operation that still has to
    /// wait for leases of other devices is refused as [`holdfast_protocol::message::ServerError::Busy`].
    pub fn handle_waiting(
        &self,
        caller: &Caller,
        request: Request,
        pause: &mut dyn FnMut() -> bool,
    ) -> Response {
        match request {
            Request::FetchPending { device, number, .. } => loop {
                if let Some(answer) = self.operation_status(caller, device, number) {
                    return answer;
                }
                if !pause() {
                    return Response::Structure(None);
                }
            },
            Request::AwaitRecall { run, epoch, acknowledged, log_size, .. } => loop {
                if let Some(answer) = self.recall(caller, run, epoch, acknowledged) {
                    return answer;
                }
                if let Some(answer) = log_size.and_then(|log_size| self.push(caller, log_size)) {
                    return answer;
                }
                if !pause() {
                    return Response::Recalled(None);
                }
            },
            Request::AwaitLock { lock, wait_ms } => loop {
                let await_lock = Request::AwaitLock { lock: lock.clone(), wait_ms };
                let answer = self.handle(caller, await_lock);
                let is_held = matches!(&answer, Response::Locks { answer: LockReply::Held(_), .. });
                if is_held && pause() {
                    continue;
                }
                if let Some(file_system) = &caller.file_system
                    && let Some(device) = file_system.device(&caller.peer)
                {
                    file_system.waits_no_more(device, &lock);
                }
                return answer;
            },
            Request::Update { .. } | Request::Fast { .. } => {
                let (mut request, mut claim) = (request, None);
                loop {
                    match self.attempt(caller, request, claim.is_some()) {
                        RequestOutcome::Answered(answer) => return *answer,
                        RequestOutcome::Waits { request: again, claim: claimed, .. } => {
                            request = *again;
                            claim = claim.or(claimed);
                        }
                    }
                    if !pause() {
                        return self.handle(caller, request);
                    }
                }
            }
            request => self.handle(caller, request),
        }
    }
}
