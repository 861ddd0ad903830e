//! Advisory locks: carries out requests on the table of locks.

use super::FileSystem;
use crate::refusal::RequestError;
use holdfast_content::DeviceId;
use holdfast_protocol::locks::{Holder, LockAttempt, LockOutcome, SessionId};
use holdfast_protocol::message::{LockHolder, LockMode, LockReply, LockRequest, Response, ServerError};
use tokio::sync::futures::Notified;

impl FileSystem {
    /// Carries out a lock request without waiting.
    pub(crate) fn lock(&self, device: DeviceId, request: &LockRequest) -> Result<Response, RequestError> {
        let (holder, wish) = self.wish_of(device, request)?;
        if wish.mode.is_some() {
            self.note_locks()?;
        }
        let now_ms = self.now_ms();
        let mut table = self.locks.lock();
        let epoch = table.renew_session(holder.session, now_ms).ok_or(ServerError::Busy)?;
        let granted = table.request(holder, &wish, now_ms);
        let freed = table.take_freed();
        drop(table);
        if freed {
            self.lock_changes.notify_waiters();
        }
        Ok(Response::Locks { epoch, answer: answer(granted) })
    }

    /// Tests whether another lock conflicts with the requested one, and which.
    pub(crate) fn test_lock(
        &self,
        device: DeviceId,
        request: &LockRequest,
    ) -> Result<Response, RequestError> {
        let (holder, wish) = self.wish_of(device, request)?;
        let now_ms = self.now_ms();
        let mut table = self.locks.lock();
        let epoch = table.renew_session(holder.session, now_ms).ok_or(ServerError::Busy)?;
        let answer = match table.test(holder, &wish, now_ms) {
            Some(conflict) => answer(LockOutcome::Conflict(conflict)),
            None => LockReply::Granted,
        };
        Ok(Response::Locks { epoch, answer })
    }

    /// Requests a lock for a holder that waits from now on, until [`FileSystem::waits_no_more`]. The reply
    /// says which lock conflicts.
    pub(crate) fn wait_for_lock(
        &self,
        device: DeviceId,
        request: &LockRequest,
    ) -> Result<Response, RequestError> {
        let (holder, wish) = self.wish_of(device, request)?;
        let now_ms = self.now_ms();
        let mut table = self.locks.lock();
        let epoch = table.renew_session(holder.session, now_ms).ok_or(ServerError::Busy)?;
        let granted = table.wait_for(holder, &wish, now_ms);
        Ok(Response::Locks { epoch, answer: answer(granted) })
    }

    /// Renews the session of a client's run, and with it its locks.
    pub(crate) fn keep_locks(&self, device: DeviceId, run: u128) -> Result<Response, RequestError> {
        let now_ms = self.now_ms();
        let epoch =
            self.locks.lock().renew_session(SessionId { device, run }, now_ms).ok_or(ServerError::Busy)?;
        Ok(Response::Locks { epoch, answer: LockReply::Granted })
    }

    /// Ends the session of a client's run, and with it its locks.
    pub(crate) fn end_locks(&self, device: DeviceId, run: u128) -> Response {
        self.locks.lock().end(SessionId { device, run });
        self.lock_changes.notify_waiters();
        Response::Done
    }

    /// Notes that the holder of a request no longer waits.
    pub(crate) fn waits_no_more(&self, device: DeviceId, request: &LockRequest) {
        let session = SessionId { device, run: request.run };
        self.locks.lock().waits_no_more(Holder { session, owner: request.owner });
    }

    /// Completes when a lock may have become free.
    pub(crate) fn next_lock_change(&self) -> Notified<'_> {
        self.lock_changes.notified()
    }

    /// Whether any lock is held.
    pub(crate) fn holds_locks(&self) -> bool {
        !self.locks.lock().is_empty()
    }

    fn wish_of(
        &self,
        device: DeviceId,
        request: &LockRequest,
    ) -> Result<(Holder, LockAttempt), RequestError> {
        if !request.range.is_valid() {
            return Err(ServerError::Invalid("a range of bytes ends before it begins".to_owned()).into());
        }
        // A user who may only read must not be able to make writers wait.
        if request.mode == Some(LockMode::Exclusive) && !self.may_write(device, request.file.principal) {
            let why = format!("only who may write a file of {} may lock others out", request.file.principal);
            return Err(ServerError::NotAllowed(why).into());
        }
        let wish = LockAttempt {
            file: request.file,
            space: request.space,
            range: request.range,
            mode: request.mode,
            process: request.process,
            reclaim: request.reclaim,
            wait: request.wait,
        };
        Ok((Holder { session: SessionId { device, run: request.run }, owner: request.owner }, wish))
    }
}

fn answer(granted: LockOutcome) -> LockReply {
    match granted {
        LockOutcome::Granted => LockReply::Granted,
        LockOutcome::Conflict(conflict) => LockReply::Held(LockHolder {
            device: conflict.holder.session.device,
            run: conflict.holder.session.run,
            process: conflict.process,
            range: conflict.range,
            mode: conflict.mode,
        }),
        LockOutcome::Deadlock => LockReply::Deadlock,
        LockOutcome::Grace(left_ms) => {
            LockReply::Grace { left_ms: u32::try_from(left_ms).unwrap_or(u32::MAX) }
        }
        LockOutcome::TooMany => LockReply::TooMany,
    }
}
